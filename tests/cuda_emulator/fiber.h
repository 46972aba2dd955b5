// A fiber: a stack of its own and a place to continue at. The emulator runs one per CUDA thread.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuda_emulator {

class Fiber {
 public:
  /// The context that is running: what others switch back to.
  Fiber();
  /// A fiber on a stack of its own, between guard pages. Rests until start().
  explicit Fiber(size_t stack_bytes);
  Fiber(const Fiber&) = delete;
  ~Fiber();

  /// The next switch to this fiber calls entry(), which must end with leave_to().
  void start(void (*entry)());
  /// Continues `next`; returns when something switches back to this fiber, which must be running.
  void switch_to(Fiber& next) { go(next, false); }
  /// As switch_to, for the last time: never returns.
  [[noreturn]] void leave_to(Fiber& next);

  /// True for an address in a guard page of this fiber's stack.
  bool guards(const void* address) const;

 private:
  void go(Fiber& next, bool ends);
  static void enter();

  char* mapping_ = nullptr;  // with the guard pages
  char* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  void (*entry_)() = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
  // What ASan (a fake stack) or TSan (a thread) keeps for the fiber.
  [[maybe_unused]] void* sanitizer_ = nullptr;
};

}  // namespace cuda_emulator
