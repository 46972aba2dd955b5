// The caching allocator, one for each device.
//
// On the CPU a request is rounded up to 64 bytes, or to 4 KiB pages from `mapping_threshold` on;
// from there memory comes from mmap, aligned so that the kernel can back it with 2 MB pages. A
// freed buffer goes to a list of its size. A request takes the smallest free buffer that holds it
// and is at most an eighth larger: so a loop whose sizes vary little (the last batch) settles too.
//
// On a GPU a buffer may be handed out again while kernels still use it: they all run on one stream,
// so what the next owner does comes after them.
#include "core/storage.h"

#include <sys/mman.h>
#ifdef __linux__
#include <sys/sysinfo.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/cuda/backend.h"

namespace tapeformer {
namespace {

constexpr size_t page = 4096, huge_page = size_t{2} << 20;
constexpr size_t mapping_threshold = size_t{256} << 10;
constexpr size_t small_step = 64, small_limit = 4096;

// The number in a file of a cgroup; all there is where it says "max" or is not there.
size_t limit_of_cgroup(const char* name) {
  size_t bytes;
  return std::ifstream(std::string("/sys/fs/cgroup/") + name) >> bytes ? bytes : SIZE_MAX;
}

// What the machine has, swap included. Linux grants more, and ends the program when it is used.
size_t memory_of_machine() {
#ifdef __linux__
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    // cgroup v2 limits memory and swap, v1 memory and both together.
    const size_t memory = std::min({info.totalram * info.mem_unit, limit_of_cgroup("memory.max"),
                                    limit_of_cgroup("memory/memory.limit_in_bytes")});
    const size_t swap =
        std::min(info.totalswap * info.mem_unit, limit_of_cgroup("memory.swap.max"));
    return std::min(memory + swap, limit_of_cgroup("memory/memory.memsw.limit_in_bytes"));
  }
#endif
  return SIZE_MAX;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where an allocator gets its memory from.
struct Source {
  virtual ~Source() = default;
  virtual size_t rounded(size_t bytes) const = 0;
  /// How much there can be, `reserved` of which is taken.
  virtual size_t limit(size_t reserved) const = 0;
  /// False where no buffer may be handed out twice.
  virtual bool caches() const { return true; }
  /// Null when there is none.
  virtual Buffer* take(size_t capacity, size_t reserved) = 0;
  virtual void give_back(Buffer* buffer) = 0;
  virtual void fill_with_nan(Buffer* buffer) = 0;
  /// The end of the message that there is no memory.
  virtual std::string shortage() const = 0;
};

class HostMemory : public Source {
 public:
  size_t rounded(size_t bytes) const override {
    return round_up(bytes, bytes < mapping_threshold ? small_step : page);
  }

  size_t limit(size_t) const override {
    static const size_t machine = memory_of_machine();
    return machine;
  }

  Buffer* take(size_t capacity, size_t reserved) override {
    const size_t most = limit(reserved);
    if (capacity > most - std::min(most, reserved)) return nullptr;
    const bool mapped = capacity >= mapping_threshold;
    auto* buffer = new (std::nothrow) Buffer;
    void* data = nullptr;
    if (buffer) data = mapped ? map(capacity) : std::aligned_alloc(small_step, capacity);
    if (!data) {
      delete buffer;
      return nullptr;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    buffer->mapped = mapped ? capacity : 0;
    return buffer;
  }

  void give_back(Buffer* buffer) override {
    if (buffer->mapped)
      munmap(buffer->data, buffer->mapped);
    else
      std::free(buffer->data);
    delete buffer;
  }

  void fill_with_nan(Buffer* buffer) override {
    std::memset(buffer->data, 0xff, buffer->capacity);  // NaN in every floating format
  }

  std::string shortage() const override {
    return "; lower batch (a larger accumulate makes up for it), context, layers or channels";
  }

 private:
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
};

class DeviceMemory : public Source {
 public:
  size_t rounded(size_t bytes) const override { return round_up(bytes, cuda::allocation_unit()); }
  size_t limit(size_t reserved) const override { return reserved + cuda::free_bytes(); }
  bool caches() const override { return cuda::allocation_unit() > 1; }

  Buffer* take(size_t capacity, size_t) override {
    void* data = cuda::allocate(capacity);
    if (!data) return nullptr;
    auto* buffer = new Buffer;
    buffer->device = Device::cuda;
    buffer->data = data;
    buffer->capacity = capacity;
    return buffer;
  }
  void give_back(Buffer* buffer) override {
    cuda::release(buffer->data);
    delete buffer;
  }
  void fill_with_nan(Buffer* buffer) override {
    cuda::fill_bytes(buffer->data, 0xff, buffer->capacity);
  }
  std::string shortage() const override {
    return " on the GPU, which has " + std::to_string(cuda::free_bytes()) +
           " left; a smaller batch or context needs less, or recompute";
  }
};

class CachingAllocator {
 public:
  explicit CachingAllocator(Source& source) : source_(source) {}

  Buffer* take(size_t bytes) {
    const size_t capacity = source_.rounded(bytes ? bytes : 1);
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
    source_.fill_with_nan(buffer);
#endif
    return buffer;
  }

  void give_back(Buffer* buffer) {
    std::lock_guard lock(mutex_);
    stats_.live_bytes -= buffer->in_use;
    if (!source_.caches()) return drop(buffer);
    try {
      list_of(buffer->capacity).push_back(buffer);
    } catch (const std::bad_alloc&) {  // no memory even for the list: the block is not kept
      drop(buffer);
    }
  }

  void release_cached() {
    std::lock_guard lock(mutex_);
    const auto release_list = [&](std::vector<Buffer*>& list) {
      for (Buffer* buffer : list) drop(buffer);
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

  size_t limit() { return source_.limit(stats().reserved_bytes); }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

 private:
  void drop(Buffer* buffer) {
    stats_.reserved_bytes -= buffer->capacity;
    source_.give_back(buffer);
  }

  static bool is_small(size_t capacity) {
    return capacity <= small_limit && capacity % small_step == 0;
  }
  std::vector<Buffer*>& list_of(size_t capacity) {
    return is_small(capacity) ? small_[capacity / small_step - 1] : large_[capacity];
  }

  Buffer* take_cached(size_t capacity) {
    if (is_small(capacity)) return pop(small_[capacity / small_step - 1]);
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
    Buffer* buffer = source_.take(capacity, stats().reserved_bytes);
    if (!buffer) {  // what lies here unused may be what is missing
      release_cached();
      buffer = source_.take(capacity, stats().reserved_bytes);
    }
    if (buffer) return buffer;
    const MemoryStats now = stats();
    fail("out of memory: asked for ", capacity, " bytes with ", now.live_bytes, " in use and ",
         now.reserved_bytes, " reserved", source_.shortage());
  }

  void count_live(Buffer& buffer, size_t bytes) {
    buffer.in_use = bytes;
    stats_.live_bytes += bytes;
    if (stats_.live_bytes > stats_.peak_bytes) stats_.peak_bytes = stats_.live_bytes;
  }

  Source& source_;
  std::mutex mutex_;
  std::array<std::vector<Buffer*>, small_limit / small_step> small_;
  std::map<size_t, std::vector<Buffer*>> large_;
  MemoryStats stats_;
};

// Never destroyed: tensors with static lifetime may outlive any order of destruction.
CachingAllocator& allocator(Device device) {
  static auto* const cpu = new CachingAllocator(*new HostMemory);
  if (device == Device::cpu) return *cpu;
  if constexpr (knows_cuda) {
    check(cuda::built(), "storage: this program was built without CUDA; use Device::cpu");
    static auto* const gpu = new CachingAllocator(*new DeviceMemory);
    return *gpu;
  }
  fail("storage: this system has no CUDA; use Device::cpu");
}

}  // namespace

void Buffer::release(Buffer* buffer) { allocator(buffer->device).give_back(buffer); }

Storage Storage::allocate(size_t bytes, Device device) {
  return Storage(allocator(device).take(bytes));
}

MemoryStats memory_stats(Device device) { return allocator(device).stats(); }
size_t memory_limit(Device device) { return allocator(device).limit(); }
void reset_peak_memory(Device device) { allocator(device).reset_peak(); }
void release_cached_memory(Device device) { allocator(device).release_cached(); }

}  // namespace tapeformer
