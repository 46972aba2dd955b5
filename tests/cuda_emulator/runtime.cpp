// The part of the CUDA runtime that the project calls, on the emulator. Streams are lazy: nothing
// that was put on one happens before somebody waits for it, so a wait that is missing shows.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "cuda_emulator/device.h"
#include "cuda_emulator/emulator.h"
#include "cuda_emulator/report.h"

using cuda_emulator::fault;
using cuda_emulator::OpenMemory;

struct CUstream_st {
  std::deque<std::function<void()>> work;
  size_t enqueued = 0, done = 0;
  size_t last_download = 0;  // `enqueued` after it
};

struct CUevent_st {
  cudaStream_t stream = nullptr;
  size_t position = 0;           // what has to be done on the stream before the event has happened
  bool behind_download = false;  // and nobody has waited for it yet
};

namespace {

struct Runtime {
  std::recursive_mutex mutex;
  std::set<cudaStream_t> streams;
  std::map<char*, size_t> pinned;
  cuda_emulator::Machine machine;
  size_t waits = 0;
};

Runtime& runtime() {
  static Runtime* const runtime = new Runtime;
  return *runtime;
}

using Lock = std::lock_guard<std::recursive_mutex>;

cudaStream_t checked(cudaStream_t stream) {
  if (!runtime().streams.count(stream))
    fault("no stream %p: use one from cudaStreamCreateWithFlags", static_cast<void*>(stream));
  return stream;
}

// Does what is on the stream, up to `position`.
void drain(cudaStream_t stream, size_t position) {
  while (stream->done < position && !stream->work.empty()) {
    const std::function<void()> work = std::move(stream->work.front());
    stream->work.pop_front();
    ++stream->done;
    work();
  }
}

void drain_all() {
  if (std::ranges::all_of(runtime().streams, [](cudaStream_t s) { return s->work.empty(); }))
    return;
  const OpenMemory open;
  for (cudaStream_t stream : runtime().streams) drain(stream, stream->enqueued);
}

void put(cudaStream_t stream, std::function<void()> work) {
  checked(stream)->work.push_back(std::move(work));
  ++stream->enqueued;
}

// Host memory that a kernel could not read: anything that this process has mapped. Linux places it
// above 0x5000'0000'0000; below, pairs of numbers would hit the shadow memory of a sanitizer.
bool is_host_memory(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  if (bits < (uintptr_t{5} << 44) || bits >> 47) return false;
  unsigned char resident;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return mincore(reinterpret_cast<void*>(bits / page * page), 1, &resident) == 0;
}

}  // namespace

namespace cuda_emulator {

void pretend(const Machine& machine) {
  const Lock lock(runtime().mutex);
  runtime().machine = machine;
  set_device_bytes_in_total(machine.memory_bytes);
}

std::string kernel_name(const char* pretty_function) {
  std::string name = pretty_function;
  const size_t begin = name.find("Kernel = ") + 9;
  const size_t end = std::min(name.find_first_of(";]", begin), name.find(", Arguments", begin));
  name = name.substr(begin, end - begin);
  const size_t arguments = name.find('<');
  const size_t scope = name.rfind("::", arguments);
  if (scope != std::string::npos) name = name.substr(scope + 2);
  return name[0] == '&' ? name.substr(1) : name;
}

void check_argument(const Launch& launch, int position, const void* argument, size_t size) {
  for (size_t at = 0; at + sizeof(void*) <= size; at += sizeof(void*)) {
    const void* word;
    std::memcpy(&word, static_cast<const char*>(argument) + at, sizeof word);
    if (!is_device_address(word) && is_host_memory(word))
      fault("%s: argument %d holds a host pointer, %p; launched at %s:%d", launch.kernel.c_str(),
            position, word, launch.place.file, launch.place.line);
  }
}

void enqueue(cudaStream_t stream, Launch launch) {
  const Lock lock(runtime().mutex);
  const size_t threads = launch.block.count();
  if (threads == 0 || threads > 1024 || threads % 32)
    fault(
        "%s: a block of %zu threads; it must be a multiple of 32, at most 1024; launched at "
        "%s:%d",
        launch.kernel.c_str(), threads, launch.place.file, launch.place.line);
  if (launch.grid.count() == 0 || launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 ||
      launch.grid.z > 65535)
    fault("%s: a grid of (%u, %u, %u) blocks; launched at %s:%d", launch.kernel.c_str(),
          launch.grid.x, launch.grid.y, launch.grid.z, launch.place.file, launch.place.line);
  put(stream, [launch = std::move(launch)] { run(launch); });
}

size_t waits() {
  const Lock lock(runtime().mutex);
  return runtime().waits;
}

void put_on_stream(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(runtime().mutex);
  put(stream, std::move(work));
}

}  // namespace cuda_emulator

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = runtime().machine.devices;
  return runtime().machine.error;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = runtime().machine.driver_version;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device < runtime().machine.devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const cuda_emulator::Machine& machine = runtime().machine;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = machine.capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = machine.capability % 10;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = machine.processors;
      return cudaSuccess;
    default:
      fault("cudaDeviceGetAttribute: attribute %d is not emulated", static_cast<int>(attribute));
  }
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = cuda_emulator::device_bytes_in_total();
  *free = *total - cuda_emulator::device_bytes_in_use();
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                 ? "no error"
         : error == cudaErrorMemoryAllocation ? "out of memory"
                                              : "an error of the emulator";
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Lock lock(runtime().mutex);
  *data = cuda_emulator::allocate_device(bytes);
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
// Waits for everything, as the real one does.
cudaError_t cudaFree(void* data) {
  const Lock lock(runtime().mutex);
  drain_all();
  if (data) cuda_emulator::release_device(data);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  const Lock lock(runtime().mutex);
  *data = std::malloc(std::max<size_t>(bytes, 1));
  runtime().pinned[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const Lock lock(runtime().mutex);
  drain_all();
  if (!runtime().pinned.erase(static_cast<char*>(data)))
    fault("cudaFreeHost of %p, which cudaMallocHost did not give", data);
  std::free(data);
  return cudaSuccess;
}

// Host memory that is written gets NaN first: what somebody sees who does not wait.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  const bool to_device = kind != cudaMemcpyDeviceToHost,
             from_device = kind != cudaMemcpyHostToDevice;
  if (to_device) cuda_emulator::check_device_range("cudaMemcpyAsync, destination", to, bytes);
  if (from_device) cuda_emulator::check_device_range("cudaMemcpyAsync, source", from, bytes);
  if ((!to_device && cuda_emulator::is_device_address(to)) ||
      (!from_device && cuda_emulator::is_device_address(from)))
    fault("cudaMemcpyAsync: device memory given as host memory");
  if (!to_device) std::memset(to, 0xff, bytes);
  put(stream, [=] { std::memcpy(to, from, bytes); });
  if (!to_device) stream->last_download = stream->enqueued;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  cuda_emulator::check_device_range("cudaMemsetAsync", data, bytes);
  put(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(runtime().mutex);
  *stream = new CUstream_st;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  const OpenMemory open;
  ++runtime().waits;
  drain(checked(stream), stream->enqueued);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  cudaStreamSynchronize(stream);
  runtime().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(runtime().mutex);
  drain_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  event->stream = checked(stream);
  event->position = stream->enqueued;
  event->behind_download = event->position > 0 && event->position == stream->last_download;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  const OpenMemory open;
  if (!event->stream) return cudaSuccess;
  runtime().waits += std::exchange(event->behind_download, false);
  drain(checked(event->stream), event->position);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(runtime().mutex);
  if (event->stream)
    put(stream, [other = event->stream, position = event->position] { drain(other, position); });
  return cudaSuccess;
}

}  // extern "C"
