// The three things that a kernel needs besides CUDA C++: launch(), SHARED and DYN_SHARED. nvcc
// turns them into CUDA's own; where TAPEFORMER_CUDA_EMULATED is defined, g++ compiles the kernels
// and they run on the emulator in tests/cuda_emulator, which checks what a GPU does not.
//
// Rules that both rely on: a block has a multiple of 32 threads, shuffles have full masks, no
// thread returns before a barrier or a shuffle that others of its block or warp still reach, one
// barrier stands on a line.
#pragma once

#include <cuda_runtime.h>

#ifdef TAPEFORMER_CUDA_EMULATED
#include "cuda_emulator/device.h"
#endif

namespace tapeformer::cuda {

/// Throws Error, saying which call failed and why, unless `error` is cudaSuccess.
void check_cuda(cudaError_t error, const char* call);

/// A stream, and the line that launches something on it.
struct StreamAt {
  StreamAt(cudaStream_t stream, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(stream), file(file), line(line) {}
  cudaStream_t stream;
  const char* file;
  int line;
};

#ifdef TAPEFORMER_CUDA_EMULATED

template <auto Kernel, class... Arguments>
void launch(dim3 grid, dim3 block, size_t shared_bytes, StreamAt stream,
            const Arguments&... arguments) {
  cuda_emulator::launch<Kernel>(Kernel, __PRETTY_FUNCTION__, {stream.file, stream.line}, grid,
                                block, shared_bytes, stream.stream, arguments...);
}

// NOLINTBEGIN: these declare a variable, which only a macro can.
#define SHARED(type, name, dimensions) \
  auto& name = ::cuda_emulator::shared_array<type dimensions>([] {}, {__FILE__, __LINE__})
#define DYN_SHARED(type, name) \
  type* name = static_cast<type*>(::cuda_emulator::dynamic_shared_memory())
// NOLINTEND

#else

/// Runs Kernel(arguments...) on `grid` blocks of `block` threads, with `shared_bytes` of dynamic
/// shared memory for each block.
template <auto Kernel, class... Parameters, class... Arguments>
void launch_as(void (*)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, StreamAt stream,
               const Arguments&... arguments) {
  constexpr size_t without_asking = 48 << 10;
  if (shared_bytes > without_asking)
    check_cuda(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.stream;
  check_cuda(cudaLaunchKernelEx(&config, Kernel, static_cast<Parameters>(arguments)...),
             "cudaLaunchKernelEx");
}

template <auto Kernel, class... Arguments>
void launch(dim3 grid, dim3 block, size_t shared_bytes, StreamAt stream,
            const Arguments&... arguments) {
  launch_as<Kernel>(Kernel, grid, block, shared_bytes, stream, arguments...);
}

#define SHARED(type, name, dimensions) __shared__ type name dimensions
#define DYN_SHARED(type, name)                                    \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(dynamic_shared)

#endif

}  // namespace tapeformer::cuda
