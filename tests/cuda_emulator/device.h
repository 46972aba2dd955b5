// What a kernel may use when g++ compiles it for the emulator: CUDA's names, with its meaning.
// Barriers and shuffles know the line they stand on, so that a message can say it.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "cuda_emulator/block.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define __launch_bounds__(...)

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  cuda_emulator::wait_for_block({file, line});
}

namespace cuda_emulator {

template <class T>
T exchange_value(uint32_t mask, T value, unsigned source, Place place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 and 8 bytes");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = exchange(mask, word, source, place);
  std::memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace cuda_emulator

inline void __syncwarp(uint32_t mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  cuda_emulator::wait_for_warp(mask, {file, line});
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return cuda_emulator::exchange_value(mask, value, static_cast<unsigned>(source), {file, line});
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return cuda_emulator::exchange_value(
      mask, value, cuda_emulator::lane_index() ^ static_cast<unsigned>(lanes), {file, line});
}
/// Lanes without a source keep their own value.
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned lane = cuda_emulator::lane_index(), source = lane < lanes ? lane : lane - lanes;
  return cuda_emulator::exchange_value(mask, value, source, {file, line});
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned lanes, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned lane = cuda_emulator::lane_index();
  const unsigned source = lane + lanes < 32 ? lane + lanes : lane;
  return cuda_emulator::exchange_value(mask, value, source, {file, line});
}

/// x / y, but 0 where 2^126 < |y|, and NaN if x is infinite there.
inline float __fdividef(float x, float y) { return std::abs(y) > 0x1p126f ? 0 * x : x / y; }

namespace cuda_emulator {

/// Puts a kernel on a stream. Faults, at once, for a launch that a GPU would refuse, and for an
/// argument of `size` bytes at `argument` that holds a pointer to host memory.
void enqueue(cudaStream_t stream, Launch launch);
void check_argument(const Launch& launch, int position, const void* argument, size_t size);

template <class T>
void check_argument(const Launch& launch, int position, T argument) {
  // What lies between a structure's members is arbitrary, and may look like a pointer. Where it
  // cannot be cleared (clang), structures that may have such gaps go unchecked.
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
#else
  if (!std::has_unique_object_representations_v<T>) return;
#endif
  check_argument(launch, position, &argument, sizeof argument);
}

/// "void f() [with auto Kernel = a::b<float>; Arguments = {}]" -> "b<float>"; clang writes
/// "[Kernel = &a::b<float>, Arguments = <>]".
std::string kernel_name(const char* pretty_function);

/// Runs Kernel(arguments...) in every thread when the stream gets there.
template <auto Kernel, class... Parameters, class... Arguments>
void launch(void (*)(Parameters...), const char* name, Place place, dim3 grid, dim3 block,
            size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  Launch launch{
      kernel_name(name),           place,        {grid.x, grid.y, grid.z},
      {block.x, block.y, block.z}, shared_bytes, [values] { std::apply(Kernel, values); }};
  std::apply(
      [&](const Parameters&... each) {
        int position = 0;
        (check_argument(launch, ++position, each), ...);
      },
      values);
  enqueue(stream, std::move(launch));
}

/// A variable of type T in shared memory; another one for each Tag.
template <class T, class Tag>
T& shared_array(Tag, Place place) {
  static const char key = 0;
  return *static_cast<T*>(shared_variable(&key, sizeof(T), alignof(T), place));
}

}  // namespace cuda_emulator
