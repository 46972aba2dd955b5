// Memory for the middle of a computation, which a thread keeps from one call to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace tapeformer::cpu {

/// Memory of the calling thread, at least n elements, 64-byte aligned. It is kept for the next call
/// with the same T and slot, and its content is arbitrary. Slot 0 is for kernels, the others are
/// for what kernels call.
template <class T, int slot = 0>
T* thread_scratch(int64_t n) {
  struct Release {
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<T[], Release> memory;
  thread_local int64_t size = 0;
  if (size < n) {
    size = 0;  // should the allocation throw
    memory.reset();
    memory.reset(static_cast<T*>(::operator new[](n * sizeof(T), std::align_val_t{64})));
    size = n;
  }
  return memory.get();
}

}  // namespace tapeformer::cpu
