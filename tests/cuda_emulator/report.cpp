#include "report.h"

#include <signal.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "block.h"
#include "memory.h"

namespace cuda_emulator {
namespace {

void on_forbidden_access(int, siginfo_t* info, void*) {
  char what[400];
  if (describe_access(info->si_addr, what, sizeof what)) fault("%s", what);
  if (stack_guard_at(info->si_addr)) fault("a thread's stack overflows");
  if (running_kernel()) fault("a thread uses the address %p, where nothing lies", info->si_addr);
  signal(SIGSEGV, SIG_DFL);  // not ours: happens again, and ends the program
}

}  // namespace

void fault(const char* format, ...) {
  std::fflush(stdout);
  std::fputs("CUDA emulator: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  char where[600];
  if (describe_thread(where, sizeof where)) std::fprintf(stderr, "; %s", where);
  std::fputc('\n', stderr);
  std::abort();
}

void watch_memory() {
  static char stack[64 << 10];  // the one that runs may have overflowed
  const stack_t alternative{stack, 0, sizeof stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_forbidden_access;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace cuda_emulator
