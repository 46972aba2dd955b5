// The caching allocator.
//
// A request is rounded up to 64 bytes, or to 4 KiB pages from `mapping_threshold` on; from there
// memory comes from mmap, aligned so that the kernel can back it with 2 MB pages. A freed buffer
// goes to a list of its size. A request takes the smallest free buffer that holds it and is at most
// an eighth larger: so a loop whose sizes vary a little (the last batch) settles as well.
#include "core/storage.h"

#include <sys/mman.h>
#ifdef __linux__
#include <sys/sysinfo.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core/check.h"

namespace tapeformer {
namespace {

constexpr size_t page = 4096, huge_page = size_t{2} << 20;
constexpr size_t mapping_threshold = size_t{256} << 10;
constexpr size_t small_step = 64, small_limit = 4096;

// What the machine has, swap included. Linux grants more, and ends the program when it is used.
size_t memory_of_machine() {
#ifdef __linux__
  struct sysinfo info {};
  if (sysinfo(&info) == 0) return (info.totalram + info.totalswap) * info.mem_unit;
#endif
  return SIZE_MAX;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class CachingAllocator {
 public:
  Buffer* take(size_t bytes) {
    const size_t capacity =
        round_up(bytes ? bytes : 1, bytes < mapping_threshold ? small_step : page);
    Buffer* buffer = nullptr;
    {
      std::lock_guard lock(mutex_);
      buffer = take_cached(capacity);
      if (buffer) count_live(*buffer, capacity);
    }
    if (!buffer) {
      buffer = take_new(capacity);
      std::lock_guard lock(mutex_);
      stats_.reserved_bytes += capacity;
      ++stats_.system_requests;
      count_live(*buffer, capacity);
    }
#ifndef NDEBUG
    std::memset(buffer->data, 0xff, buffer->capacity);  // NaN in every floating format
#endif
    return buffer;
  }

  void give_back(Buffer* buffer) {
    std::lock_guard lock(mutex_);
    stats_.live_bytes -= buffer->in_use;
    try {
      list_of(buffer->capacity).push_back(buffer);
    } catch (const std::bad_alloc&) {  // no memory even for the list: the block is not kept
      stats_.reserved_bytes -= buffer->capacity;
      release(buffer);
    }
  }

  void release_cached() {
    std::lock_guard lock(mutex_);
    const auto release_list = [&](std::vector<Buffer*>& list) {
      for (Buffer* buffer : list) {
        stats_.reserved_bytes -= buffer->capacity;
        release(buffer);
      }
      list.clear();
    };
    for (auto& list : small_) release_list(list);
    for (auto& [capacity, list] : large_) release_list(list);
    large_.clear();
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

 private:
  static void release(Buffer* buffer) {
    if (buffer->mapped)
      munmap(buffer->data, buffer->mapped);
    else
      std::free(buffer->data);
    delete buffer;
  }

  std::vector<Buffer*>& list_of(size_t capacity) {
    return capacity <= small_limit ? small_[capacity / small_step - 1] : large_[capacity];
  }

  Buffer* take_cached(size_t capacity) {
    if (capacity <= small_limit) return pop(small_[capacity / small_step - 1]);
    for (auto list = large_.lower_bound(capacity);
         list != large_.end() && list->first <= capacity + capacity / 8; ++list)
      if (Buffer* buffer = pop(list->second)) return buffer;
    return nullptr;
  }

  static Buffer* pop(std::vector<Buffer*>& list) {
    if (list.empty()) return nullptr;
    Buffer* buffer = list.back();
    list.pop_back();
    return buffer;
  }

  Buffer* take_new(size_t capacity) {
    static const size_t limit = memory_of_machine();
    void* data = nullptr;
    size_t mapped = 0;
    const bool fits = capacity <= limit - std::min(limit, stats().reserved_bytes);
    if (fits && capacity >= mapping_threshold) {
      data = map(capacity);
      mapped = capacity;
    } else if (fits) {
      data = std::aligned_alloc(small_step, capacity);
    }
    if (!data) {
      const MemoryStats now = stats();
      fail("out of memory: asked for ", capacity, " bytes with ", now.live_bytes, " in use and ",
           now.reserved_bytes, " reserved; a smaller batch, context or model needs less");
    }
    auto* buffer = new Buffer;
    buffer->data = data;
    buffer->capacity = capacity;
    buffer->mapped = mapped;
    return buffer;
  }

  // A mapping that starts on a 2 MB boundary; null when the system refuses.
  static void* map(size_t bytes) {
    const size_t slack = bytes >= huge_page ? huge_page : 0;
    if (bytes + slack < bytes) return nullptr;
    void* mapping =
        mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    if (!slack) return mapping;
    char* begin = static_cast<char*>(mapping);
    const size_t skip = (huge_page - reinterpret_cast<uintptr_t>(begin) % huge_page) % huge_page;
    if (skip) munmap(begin, skip);
    if (slack > skip) munmap(begin + skip + bytes, slack - skip);
#ifdef MADV_HUGEPAGE
    madvise(begin + skip, bytes, MADV_HUGEPAGE);
#endif
    return begin + skip;
  }

  void count_live(Buffer& buffer, size_t bytes) {
    buffer.in_use = bytes;
    stats_.live_bytes += bytes;
    if (stats_.live_bytes > stats_.peak_bytes) stats_.peak_bytes = stats_.live_bytes;
  }

  std::mutex mutex_;
  std::array<std::vector<Buffer*>, small_limit / small_step> small_;
  std::map<size_t, std::vector<Buffer*>> large_;
  MemoryStats stats_;
};

// Never destroyed: tensors with static lifetime may outlive any order of destruction.
CachingAllocator& allocator(Device device) {
  check(device == Device::cpu, "storage: this build has no CUDA support; use Device::cpu");
  static auto* const cpu = new CachingAllocator;
  return *cpu;
}

}  // namespace

void Buffer::release(Buffer* buffer) { allocator(buffer->device).give_back(buffer); }

Storage Storage::allocate(size_t bytes, Device device) {
  return Storage(allocator(device).take(bytes));
}

MemoryStats memory_stats(Device device) { return allocator(device).stats(); }
void reset_peak_memory(Device device) { allocator(device).reset_peak(); }
void release_cached_memory(Device device) { allocator(device).release_cached(); }

}  // namespace tapeformer
