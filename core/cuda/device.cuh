// What the kernels share: element types, loops over elements, and sums over warps and blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/cuda/runtime.cuh"
#include "core/kernels.h"

namespace tapeformer::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

// ---------------------------------------------------------------- element types

// 16-bit numbers are stored; arithmetic and sums are in f32.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(f16 x) { return __half2float(x); }
__device__ inline float to_float(int32_t x) { return static_cast<float>(x); }

template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(x);
  else
    return static_cast<T>(x);
}

/// Calls f(T{}) with the type that `dtype` is stored in: float, bf16 or f16.
template <class F>
void dispatch(const char* operation, DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      fail(operation, ": on a GPU computes in f32, bf16 or f16, got ", dtype,
           "; convert with cast(x, DType::f32), or use the CPU");
  }
}

/// The same, and i32: all elements can be copied and added.
template <class F>
void dispatch_number(const char* operation, DType dtype, F&& f) {
  if (dtype == DType::i32) return f(int32_t{});
  dispatch(operation, dtype, f);
}

/// Where a kernel writes: a tensor of f32, bf16 or f16, and whether to add to what is there.
struct Out {
  void* data = nullptr;
  DType dtype = DType::f32;
  bool accumulate = false;

  Out() = default;
  Out(const Destination& d)
      : data(d ? d.tensor.raw() : nullptr),
        dtype(d ? d.tensor.dtype() : DType::f32),
        accumulate(d.accumulate) {}
  Out(const Tensor& tensor) : Out(Destination{tensor}) {}

  template <class T>
  __device__ void write_as(size_t i, float value) const {
    T* to = static_cast<T*>(data) + i;
    *to = from_float<T>(accumulate ? to_float(*to) + value : value);
  }
  __device__ void write(size_t i, float value) const {
    if (dtype == DType::f32) return write_as<float>(i, value);
    if (dtype == DType::bf16) return write_as<bf16>(i, value);
    write_as<f16>(i, value);
  }
};

/// What a kernel reads where speed does not matter: a tensor of f32, bf16 or f16.
struct In {
  const void* data = nullptr;
  DType dtype = DType::f32;

  In(const Tensor& x)
      : data(x.defined() ? x.raw() : nullptr), dtype(x.defined() ? x.dtype() : DType::f32) {}
  __device__ float read(size_t i) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == DType::bf16) return to_float(static_cast<const bf16*>(data)[i]);
    return to_float(static_cast<const f16*>(data)[i]);
  }
};

constexpr size_t size(int64_t n) { return static_cast<size_t>(n); }
/// The rows of x, whose last dimension is a row.
inline int64_t rows_of(const Tensor& x) { return x.dim(-1) ? x.numel() / x.dim(-1) : 0; }

/// What a kernel reads; undefined tensors give null.
template <class T>
const T* in(const Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.raw()) : nullptr;
}
template <class T>
T* out(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw()) : nullptr;
}

/// Calls f with that constant among `choices` which `chosen` is: outside a loop over numbers, so
/// that they do not choose one by one.
template <auto... choices, class E, class F>
__device__ void with_constant(E chosen, const F& f) {
  ((chosen == choices ? f(std::integral_constant<E, choices>{}) : void()), ...);
}

// ---------------------------------------------------------------- loops

inline constexpr unsigned each_threads = 256;

/// Functions of an index that run for every element; named so that a test can list them.
struct Each {};

/// f(i) for i < n. f stays where arguments are, so that an array in it may have an index that is
/// not constant.
template <class F>
__global__ void __launch_bounds__(each_threads) each_kernel(size_t n, const __grid_constant__ F f) {
  const size_t stride = size_t{gridDim.x} * each_threads;
  for (size_t i = size_t{blockIdx.x} * each_threads + threadIdx.x; i < n; i += stride) f(i);
}

template <class F>
void each(int64_t n, const F& f, StreamAt at = stream()) {
  static_assert(std::is_base_of_v<Each, F>);
  if (n == 0) return;
  constexpr int64_t most_blocks = 1 << 16;
  const int64_t blocks = std::min(most_blocks, (n + each_threads - 1) / each_threads);
  launch<each_kernel<F>>(static_cast<unsigned>(blocks), each_threads, 0, at, n, f);
}

/// `blocks` as a launch takes them. Throws where a grid has no place for so many.
inline unsigned grid_of(int64_t blocks) {
  check(blocks <= INT32_MAX, "a launch on a GPU has at most 2^31 - 1 blocks, got ", blocks,
        "; split the tensor, or use the CPU");
  return static_cast<unsigned>(blocks);
}
inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return grid_of((n + per_block - 1) / per_block);
}

// ---------------------------------------------------------------- sums and maxima

inline constexpr unsigned whole_warp = 0xffffffffu;

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(whole_warp, x, lanes);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(whole_warp, x, lanes));
  return x;
}

/// Joins each of K numbers over the block's threads, for all of them, which all call it; in one
/// exchange. `over_warp` joins over a warp, and `nothing` changes no result.
template <int K, class F>
__device__ void over_block(float (&x)[K], float nothing, const F& over_warp) {
#pragma unroll
  for (float& value : x) value = over_warp(value);
  const unsigned warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warps == 1) return;
  SHARED(float, partial, [K][32]);
  __syncthreads();  // the last call's readers are done
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (lane == 0) partial[k][warp] = x[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = over_warp(lane < warps ? partial[k][lane] : nothing);
}

template <int K>
__device__ void block_sum(float (&x)[K]) {
  over_block(x, 0, [](float y) { return warp_sum(y); });
}
__device__ inline float block_sum(float x) {
  float sums[] = {x};
  block_sum(sums);
  return sums[0];
}
__device__ inline float block_max(float x) {
  float largest[] = {x};
  over_block(largest, -INFINITY, [](float y) { return warp_max(y); });
  return largest[0];
}

}  // namespace tapeformer::cuda
