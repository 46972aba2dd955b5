// Numbers that lie together, read and written 16 bytes at a time, which takes fewer instructions
// and keeps more bytes under way.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

#include "core/cuda/device.cuh"
#include "core/cuda/ptx.cuh"

namespace tapeformer::cuda {

inline constexpr int pack_bytes = 16;
/// How many numbers of a type one access moves.
template <class T>
inline constexpr int pack_of = pack_bytes / static_cast<int>(sizeof(T));

/// Whether packs may begin at all of these; null is nothing to read.
inline bool packed(std::initializer_list<const void*> data) {
  for (const void* at : data)
    if (reinterpret_cast<uintptr_t>(at) % pack_bytes) return false;
  return true;
}

/// Whether packs of n divide all these lengths, too.
inline bool packed(int64_t n, std::initializer_list<int64_t> lengths,
                   std::initializer_list<const void*> data) {
  for (const int64_t length : lengths)
    if (length % n) return false;
  return packed(data);
}

template <class T, int n>
struct alignas(n * sizeof(T)) Pack {
  T at[n];
};

/// The n numbers from x on, which begins on a boundary of their size or of 16 bytes.
template <int n, class T>
__device__ Pack<T, n> load(const T* x) {
  expect_aligned("a pack", x, alignof(Pack<T, n>));
  return *reinterpret_cast<const Pack<T, n>*>(x);
}

/// The n numbers from `to` on = pack, likewise; in global memory.
template <class T, int n>
__device__ void store(T* to, const Pack<T, n>& pack) {
  expect_aligned("a pack", to, alignof(Pack<T, n>));
  if constexpr (sizeof(pack) == pack_bytes)
    store_16_bytes(to, std::bit_cast<uint4>(pack));
  else
    *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

/// to = x[0 ... n), which begins on a boundary of its size or of 16 bytes.
template <int n, class T>
__device__ void read(const T* x, float (&to)[n]) {
  constexpr int step = n < pack_of<T> ? n : pack_of<T>;
#pragma unroll
  for (int i = 0; i < n; i += step) {
    const auto pack = load<step>(x + i);
#pragma unroll
    for (int k = 0; k < step; ++k) to[i + k] = to_float(pack.at[k]);
  }
}

/// x[0 ... n) = values, likewise; in global memory.
template <int n, class T>
__device__ void write(T* x, const float (&values)[n]) {
  constexpr int step = n < pack_of<T> ? n : pack_of<T>;
#pragma unroll
  for (int i = 0; i < n; i += step) {
    Pack<T, step> pack;
#pragma unroll
    for (int k = 0; k < step; ++k) pack.at[k] = from_float<T>(values[i + k]);
    store(x + i, pack);
  }
}

/// to = elements i ... i + n - 1 of x, likewise.
template <int n>
__device__ void read(const In& x, size_t i, float (&to)[n]) {
  if (x.dtype == DType::f32) return read(static_cast<const float*>(x.data) + i, to);
  if (x.dtype == DType::bf16) return read(static_cast<const bf16*>(x.data) + i, to);
  read(static_cast<const f16*>(x.data) + i, to);
}

/// Elements i ... i + n - 1 of `to`, likewise.
template <class T, int n>
__device__ void write_as(const Out& to, size_t i, const float (&values)[n]) {
  T* x = static_cast<T*>(to.data) + i;
  float sum[n] = {};
  if (to.accumulate) read(x, sum);
#pragma unroll
  for (int k = 0; k < n; ++k) sum[k] += values[k];
  write(x, sum);
}
template <int n>
__device__ void write(const Out& to, size_t i, const float (&values)[n]) {
  if (to.dtype == DType::f32) return write_as<float>(to, i, values);
  if (to.dtype == DType::bf16) return write_as<bf16>(to, i, values);
  write_as<f16>(to, i, values);
}

// ---------------------------------------------------------------- loops

/// Functions of `n` elements from an index on, run<n>(i), that run for every element; named so that
/// a test can list them.
struct EachPack {};

template <class F, int n>
__global__ void __launch_bounds__(each_threads)
    each_pack_kernel(size_t count, const __grid_constant__ F f) {
  const size_t stride = size_t{gridDim.x} * each_threads,
               first = size_t{blockIdx.x} * each_threads + threadIdx.x;
  const size_t packs = count / n;
  for (size_t i = first; i < packs; i += stride) f.template run<n>(i * n);
  if (const size_t rest = packs * n + first; rest < count) f.template run<1>(rest);
}

/// Runs f for elements 0 ... count - 1, n at a time where all `data` it touches begins on a pack.
template <int n, class F>
void each_pack(int64_t count, const F& f, std::initializer_list<const void*> data,
               StreamAt at = stream()) {
  static_assert(std::is_base_of_v<EachPack, F>);
  if (count == 0) return;
  constexpr int64_t most_blocks = 1 << 16;
  const auto blocks = [&](int64_t width) {
    return static_cast<unsigned>(
        std::clamp<int64_t>((count / width + each_threads - 1) / each_threads, 1, most_blocks));
  };
  if (packed(data))
    launch<each_pack_kernel<F, n>>(blocks(n), each_threads, 0, at, size(count), f);
  else
    launch<each_pack_kernel<F, 1>>(blocks(1), each_threads, 0, at, size(count), f);
}

/// Functions of n elements of a matrix, those of `row` from `column` on, run<n>(row, column), that
/// run for all of it; named so that a test can list them.
struct EachInRows {};

/// Each thread goes on by as many rows and packs as all threads take at once. For f see
/// each_kernel.
template <class F, int n>
__global__ void __launch_bounds__(each_threads)
    each_in_rows_kernel(size_t rows, size_t packs, size_t row_step, size_t pack_step,
                        const __grid_constant__ F f) {
  const size_t first = size_t{blockIdx.x} * each_threads + threadIdx.x;
  size_t row = first / packs, pack = first % packs;
  while (row < rows) {
    f.template run<n>(row, n * pack);
    row += row_step;
    pack += pack_step;
    if (pack >= packs) pack -= packs, ++row;
  }
}

/// Runs f for a matrix [rows, width], n columns at a time where that is possible.
template <int n, class F>
void each_in_rows(int64_t rows, int64_t width, bool possible, const F& f, StreamAt at = stream()) {
  static_assert(std::is_base_of_v<EachInRows, F>);
  if (rows * width == 0) return;
  // Few enough that what a thread works out once does not weigh.
  constexpr int64_t most_blocks = 1 << 12;
  const int64_t packs = possible ? width / n : width;
  const int64_t blocks = std::min(most_blocks, (rows * packs + each_threads - 1) / each_threads);
  const int64_t threads = blocks * each_threads;
  const auto run = [&](auto columns) {
    launch<each_in_rows_kernel<F, decltype(columns)::value>>(
        static_cast<unsigned>(blocks), each_threads, 0, at, size(rows), size(packs),
        size(threads / packs), size(threads % packs), f);
  };
  possible ? run(std::integral_constant<int, n>{}) : run(std::integral_constant<int, 1>{});
}

/// Calls f(n, i), n a constant, for elements i ... i + n - 1 of all C in a row that a block of
/// `threads` goes over: `pack` of them at a time where `packs`, which needs C to be a multiple.
template <unsigned threads, int pack, class F>
__device__ void for_each_in_row(size_t C, bool packs, const F& f) {
  if (packs)
    for (size_t i = pack * threadIdx.x; i < C; i += pack * threads)
      f(std::integral_constant<int, pack>{}, i);
  else
    for (size_t i = threadIdx.x; i < C; i += threads) f(std::integral_constant<int, 1>{}, i);
}

}  // namespace tapeformer::cuda
