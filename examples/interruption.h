// Ending a training program from outside, by Ctrl-C or another request to end, without a loss.
#pragma once

#include <csignal>

namespace tapeformer {

inline volatile std::sig_atomic_t interrupted = 0;

/// The first signal asks the run to save and end; the next one kills it.
inline void on_interrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

/// From here on the first request to end only sets `interrupted`. A terminal that goes away asks
/// for it too, unless the program was started by nohup, which has it ignore that.
inline void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, on_interrupt);
  if (std::signal(SIGHUP, on_interrupt) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write()
}

/// Nothing is lost any more: the next one may end the program.
inline void release_interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  if (std::signal(SIGHUP, SIG_DFL) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
}

}  // namespace tapeformer
