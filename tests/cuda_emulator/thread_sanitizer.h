// Tells ThreadSanitizer which waits order memory: a launch, a barrier of a block or a warp, the end
// of a kernel. Shuffles exchange values and order nothing. The scheduler itself is compiled without
// the sanitizer.
#pragma once

#ifdef EMULATOR_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace cuda_emulator {

#ifdef EMULATOR_THREAD_SANITIZER
inline constexpr bool under_thread_sanitizer = true;
inline void acquire(void* at) { __tsan_acquire(at); }
inline void release(void* at) { __tsan_release(at); }
/// What is done while one lives, no thread of a kernel has done.
struct Unseen {
  Unseen() { AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
};
#else
inline constexpr bool under_thread_sanitizer = false;
inline void acquire(void*) {}
inline void release(void*) {}
struct Unseen {
  Unseen() {}
};
#endif

}  // namespace cuda_emulator
