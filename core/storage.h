// Memory for tensors, from a caching allocator: a buffer that is freed waits for the next request
// of its size, so that a training loop, once warm, asks the system for nothing and touches no
// fresh page (a page fault in a virtual machine costs up to 12 us).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.h"
#include "core/ref.h"

namespace tapeformer {

/// One block of memory, 64-byte aligned. Returns to the allocator's cache with its last reference.
struct Buffer {
  std::atomic<int> references{0};
  Device device = Device::cpu;
  void* data = nullptr;
  size_t capacity = 0;  // bytes
  size_t in_use = 0;    // bytes of the current request, rounded up to 64 bytes or a page
  size_t mapped = 0;    // bytes asked from mmap, 0 when the block came from the heap
  static void release(Buffer* buffer);
};

/// A counted handle on a buffer. A debug build fills fresh memory with NaN.
class Storage {
 public:
  Storage() = default;
  /// Thread-safe. Throws Error when the system has no memory left.
  static Storage allocate(size_t bytes, Device device);

  void* data() const { return buffer_->data; }
  Device device() const { return buffer_->device; }
  bool unique() const { return buffer_.unique(); }
  explicit operator bool() const { return static_cast<bool>(buffer_); }
  friend bool operator==(const Storage&, const Storage&) = default;

 private:
  explicit Storage(Buffer* buffer) : buffer_(buffer) {}
  Ref<Buffer> buffer_;
};

struct MemoryStats {
  size_t live_bytes = 0;       // in use by tensors now
  size_t peak_bytes = 0;       // largest live_bytes since the last reset_peak_memory
  size_t reserved_bytes = 0;   // taken from the system: live and cached
  size_t system_requests = 0;  // how often the system was asked
};

MemoryStats memory_stats(Device device = Device::cpu);
/// How many bytes there can be for tensors: what the machine has or this process's cgroup allows,
/// swap included, or the GPU has left beside other programs.
size_t memory_limit(Device device = Device::cpu);
void reset_peak_memory(Device device = Device::cpu);
/// Gives cached blocks back to the system. Not for training loops.
void release_cached_memory(Device device = Device::cpu);

}  // namespace tapeformer
