// The device itself: finding it, its one stream, its memory, and copies to and from it.
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.cuh"

namespace tapeformer::cuda {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  fail("cuda: ", call, ": ", cudaGetErrorString(error));
}

namespace {

// Pinned memory, with which a copy does not keep the host.
struct Pinned {
  void* data = nullptr;
  size_t capacity = 0;
  cudaEvent_t done = nullptr;  // the last copy from it or to it

  /// Waits until it is free, and has room for so many bytes then.
  void prepare(size_t bytes) {
    if (done)
      wait();
    else
      check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate");
    if (capacity >= bytes) return;
    if (data) check_cuda(cudaFreeHost(std::exchange(data, nullptr)), "cudaFreeHost");
    capacity = 0;
    check_cuda(cudaMallocHost(&data, bytes), "cudaMallocHost");
    capacity = bytes;
  }
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(done, stream), "cudaEventRecord");
  }
  void wait() const { check_cuda(cudaEventSynchronize(done), "cudaEventSynchronize"); }
};

}  // namespace

struct Download {
  Pinned pinned;
  size_t bytes = 0;
  Download* next = nullptr;  // of those that are used again
};

namespace {

constexpr int oldest_capability = 80;

// Pinned memory that copies to the device pass through: the caller may go on at once, and the GPU
// fetches the bytes when it gets there. A slot takes copies until it is full; when its turn comes
// again, the last of them has to be done.
class Staging {
 public:
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    const auto* source = static_cast<const char*>(from);
    auto* target = static_cast<char*>(to);
    for (size_t done = 0; done < bytes;) {
      if (used_ == slot_bytes) {
        slot_ = (slot_ + 1) % slots_.size();
        slots_[slot_].prepare(slot_bytes);
        used_ = 0;
      }
      const size_t count = std::min(slot_bytes - used_, bytes - done);
      char* const here = static_cast<char*>(slots_[slot_].data) + used_;
      std::memcpy(here, source + done, count);
      slots_[slot_].copy(target + done, here, count, cudaMemcpyHostToDevice, stream);
      done += count;
      used_ = std::min(slot_bytes, (used_ + count + alignment - 1) / alignment * alignment);
    }
  }

 private:
  static constexpr size_t slot_bytes = size_t{4} << 20, alignment = 256;
  std::mutex mutex_;
  std::array<Pinned, 4> slots_;
  size_t slot_ = 0, used_ = slot_bytes;  // of the slot; at first, there is none
};

// Downloads that nobody waits for any more: their memory is used again.
class Downloads {
 public:
  Download* start(const void* from, size_t bytes, cudaStream_t stream) {
    Download* const download = take();
    try {
      download->bytes = bytes;
      download->pinned.prepare(bytes);
      download->pinned.copy(download->pinned.data, from, bytes, cudaMemcpyDeviceToHost, stream);
    } catch (...) {
      give_back(download);
      throw;
    }
    return download;
  }
  void give_back(Download* download) {
    const std::lock_guard lock(mutex_);
    download->next = std::exchange(idle_, download);
  }

 private:
  Download* take() {
    const std::lock_guard lock(mutex_);
    if (!idle_) return new Download;
    return std::exchange(idle_, idle_->next);
  }

  std::mutex mutex_;
  Download* idle_ = nullptr;
};

std::string version_of(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

// Why GPU `index` is of no use, empty when it is.
std::string why_not_gpu(int index) {
  int devices = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) cudaGetLastError();
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver && driver == 0) return "there is no NVIDIA driver here";
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is too old: it serves CUDA " + version_of(driver) +
           ", and this program was built with " + version_of(CUDART_VERSION) +
           "; update the driver";
  if (error == cudaErrorNoDevice || (error == cudaSuccess && devices == 0))
    return "there is an NVIDIA driver here, but no GPU";
  if (error != cudaSuccess) return std::string("CUDA says: ") + cudaGetErrorString(error);
  if (index >= devices)
    return "there is no GPU " + std::to_string(index) + "; there are " + std::to_string(devices) +
           ", counted from 0";
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  if (10 * major + minor < oldest_capability)
    return "this program has no kernels for a GPU of compute capability " + std::to_string(major) +
           '.' + std::to_string(minor) + "; it needs 8.0 or newer";
  return "";
}

struct Gpu {
  std::mutex mutex;
  int index = 0, processors = 0;
  cudaStream_t stream = nullptr;
  Staging staging;
  Downloads downloads;
};

// Never destroyed: tensors with static lifetime may outlive any order of destruction.
Gpu& the_gpu() {
  static auto* const gpu = new Gpu;
  return *gpu;
}

// The GPU, made ready on first use. Each thread has to choose it anew.
Gpu& gpu() {
  Gpu& gpu = the_gpu();
  const std::lock_guard lock(gpu.mutex);
  if (!gpu.stream) {
    const std::string why = why_not_gpu(gpu.index);
    check(why.empty(), "cuda: ", why);
    check_cuda(cudaSetDevice(gpu.index), "cudaSetDevice");
    check_cuda(cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, gpu.index),
               "cudaDeviceGetAttribute");
    check_cuda(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  thread_local bool chosen = false;
  if (!chosen) check_cuda(cudaSetDevice(gpu.index), "cudaSetDevice");
  chosen = true;
  return gpu;
}

}  // namespace

cudaStream_t stream() { return gpu().stream; }
int processors() { return gpu().processors; }

std::string why_not(int index) { return why_not_gpu(index < 0 ? the_gpu().index : index); }

void use_gpu(int index) {
  Gpu& gpu = the_gpu();
  const std::lock_guard lock(gpu.mutex);
  check(!gpu.stream || gpu.index == index, "cuda: GPU ", gpu.index,
        " is in use; choose another one before the first tensor is made");
  const std::string why = why_not_gpu(index);
  check(why.empty(), "cuda: ", why);
  gpu.index = index;
}

void synchronize() { check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

void* allocate(size_t bytes) {
  gpu();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(error, "cudaMalloc");
  return data;
}

void release(void* data) { check_cuda(cudaFree(data), "cudaFree"); }

size_t allocation_unit() {
#ifdef TAPEFORMER_CUDA_EMULATED
  return 1;
#else
  return 512;
#endif
}

size_t free_bytes() {
  gpu();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void fill_bytes(void* data, int value, size_t bytes) {
  check_cuda(cudaMemsetAsync(data, value, bytes, stream()), "cudaMemsetAsync");
}

void copy_to_device(void* to, const void* from, size_t bytes) {
  gpu().staging.copy(to, from, bytes, stream());
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
  synchronize();
}

Download* start_download(const void* from, size_t bytes) {
  return gpu().downloads.start(from, bytes, stream());
}

void finish_download(Download* download, void* to) {
  download->pinned.wait();
  std::memcpy(to, download->pinned.data, download->bytes);
}

void drop_download(Download* download) { the_gpu().downloads.give_back(download); }

}  // namespace tapeformer::cuda
