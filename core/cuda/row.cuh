// Rows of a matrix, each held in the registers of a group of threads: a warp for short rows, a block
// for long ones. So a row is read from memory once, however often a kernel needs it.
#pragma once

#include "core/cuda/sums.cuh"

namespace tapeformer::cuda {

/// `threads` threads hold `items` elements each; thread t holds elements t, t + threads, ...
template <int threads_, int items_>
struct RowLayout {
  static constexpr int threads = threads_, items = items_;
  /// A block is one group, or four warps.
  static constexpr int block = threads == 32 ? 128 : threads, rows = block / threads;

  __device__ static int thread() { return threadIdx.x % threads; }
  /// The row of this group, when groups take rows in turn.
  __device__ static size_t first_row() { return size_t{blockIdx.x} * rows + threadIdx.x / threads; }

  __device__ static float sum(float x) {
    if constexpr (threads == 32)
      return warp_sum(x);
    else
      return block_sum<threads>(x);
  }

  /// Calls f(k, i) for every element i of a row of C elements that this thread holds as its k-th.
  template <class F>
  __device__ static void for_each(int C, const F& f) {
#pragma unroll
    for (int k = 0; k < items; ++k)
      if (const int i = thread() + k * threads; i < C) f(k, i);
  }
};

/// Calls f(RowLayout) with the smallest that holds C elements.
template <class F>
void dispatch_row(const char* operation, int64_t C, F&& f) {
  if (C <= 256) return f(RowLayout<32, 8>{});
  if (C <= 1024) return f(RowLayout<128, 8>{});
  check(C <= 8192, operation, ": on a GPU rows have at most 8192 elements, got ", C,
        "; use the CPU");
  f(RowLayout<512, 16>{});
}

inline int64_t rows_of(const Tensor& x) { return x.dim(-1) ? x.numel() / x.dim(-1) : 0; }

}  // namespace tapeformer::cuda
