// How a test sees a program end: it lets a child run and reads what the child said.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace cuda_emulator {

/// Runs f in a child process and returns what it wrote to standard error, nothing when it found
/// nothing to complain about.
template <class F>
std::string last_words(F f) {
  int ends[2];
  if (pipe(ends) != 0) return "(no pipe)";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);  // no report by the test framework
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string words;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    words.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return words;
}

}  // namespace cuda_emulator
