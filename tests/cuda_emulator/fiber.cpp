// Switching fibers. On x86-64 by hand, 22 ns: a call that leaves another way, so only the registers
// that a function must preserve are kept. Elsewhere by ucontext, which makes a system call.
#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "thread_sanitizer.h"

#ifdef EMULATOR_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
extern "C" void cuda_emulator_switch(void** from, void* to);
// The floating-point control words stay as they are: kernels do not change them.
asm(R"(
.text
.globl cuda_emulator_switch
.type cuda_emulator_switch, @function
cuda_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emulator_switch, . - cuda_emulator_switch
)");
#endif

namespace cuda_emulator {
namespace {

size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Who switches, for the first instructions on a new stack.
Fiber* entered = nullptr;

}  // namespace

Fiber::Fiber() {
#ifdef EMULATOR_ADDRESS_SANITIZER
  pthread_attr_t attributes;
  void* stack = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &stack_bytes_);
  pthread_attr_destroy(&attributes);
  stack_ = static_cast<char*>(stack);
#elif defined(EMULATOR_THREAD_SANITIZER)
  sanitizer_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(size_t stack_bytes) : stack_bytes_(stack_bytes) {
  void* mapping = mmap(nullptr, stack_bytes + 2 * page(), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) std::abort();
  mapping_ = static_cast<char*>(mapping);
  stack_ = mapping_ + page();
  if (mprotect(stack_, stack_bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
#ifdef EMULATOR_THREAD_SANITIZER
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (!mapping_) return;
#ifdef EMULATOR_THREAD_SANITIZER
  __tsan_destroy_fiber(sanitizer_);
#endif
  munmap(mapping_, stack_bytes_ + 2 * page());
}

bool Fiber::guards(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return mapping_ && at >= mapping_ && at < mapping_ + stack_bytes_ + 2 * page() &&
         !(at >= stack_ && at < stack_ + stack_bytes_);
}

void Fiber::start(void (*entry)()) {
  entry_ = entry;
#ifdef EMULATOR_ADDRESS_SANITIZER
  sanitizer_ = nullptr;
#endif
#if defined(__x86_64__)
  // As after a call: six registers to restore, the address to return to, and a frame aligned so
  // that enter() finds its stack 8 bytes past a multiple of 16.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + stack_bytes_);
  *--top = 0;  // enter() never returns here
  *--top = reinterpret_cast<uintptr_t>(&Fiber::enter);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
#endif
}

void Fiber::enter() {
  Fiber* self = entered;
#ifdef EMULATOR_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  self->entry_();
  std::abort();  // entry must end with leave_to
}

void Fiber::go(Fiber& next, [[maybe_unused]] bool ends) {
  entered = &next;
#ifdef EMULATOR_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(ends ? nullptr : &sanitizer_, next.stack_, next.stack_bytes_);
#elif defined(EMULATOR_THREAD_SANITIZER)
  // Without synchronisation: only barriers order what threads do.
  __tsan_switch_to_fiber(next.sanitizer_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
  cuda_emulator_switch(&stack_pointer_, next.stack_pointer_);
#else
  swapcontext(&context_, &next.context_);
#endif
#ifdef EMULATOR_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(sanitizer_, nullptr, nullptr);
#endif
}

void Fiber::leave_to(Fiber& next) {
  go(next, true);
  std::abort();  // nobody may come back
}

}  // namespace cuda_emulator
