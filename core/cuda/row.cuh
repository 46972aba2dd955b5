// Rows of a matrix, each held in the registers of a group of threads: a warp for short rows, a block
// for long ones. So a row is read from memory once, however often a kernel needs it.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/cuda/sums.cuh"

namespace tapeformer::cuda {

/// `threads` threads hold `items` elements each, in runs of n that lie together: thread t holds the
/// runs that begin at n t, n (t + threads), ... A row is whole runs, and n a constant, so that no
/// branch stands between the loads of a run.
template <int threads_, int items, int n_>
struct RowLayout {
  static_assert(items % n_ == 0);
  static constexpr int threads = threads_, n = n_, runs = items / n;
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

  /// Calls f(k, i) for every run of a row of C that this thread holds: its k-th, elements i to
  /// i + n - 1.
  template <class F>
  __device__ static void for_each(int C, const F& f) {
#pragma unroll
    for (int k = 0; k < runs; ++k)
      if (const int i = n * (thread() + k * threads); i < C) f(k, i);
  }
};

/// Whether rows of C elements of T are whole packs in all of these, of which some may be undefined.
template <class T>
bool wide_rows(int64_t C, std::initializer_list<Tensor> rows) {
  bool wide = C % pack_of<T> == 0;
  for (const Tensor& x : rows) wide = wide && packed({in<T>(x)});
  return wide;
}

/// Calls f(RowLayout) with the smallest that holds C elements, in packs where `rows`, of which some
/// may be undefined, allow it.
template <class T, class F>
void dispatch_row(const char* operation, int64_t C, std::initializer_list<Tensor> rows,
                  const F& f) {
  check(C <= 8192, operation, ": on a GPU rows have at most 8192 elements, got ", C,
        "; use the CPU");
  const auto of = [&](auto n) {
    if (C <= 256) return f(RowLayout<32, 8, n>{});
    if (C <= 1024) return f(RowLayout<128, 8, n>{});
    f(RowLayout<512, 16, n>{});
  };
  if (wide_rows<T>(C, rows)) return of(std::integral_constant<int, pack_of<T>>{});
  of(std::integral_constant<int, 1>{});
}

inline int64_t rows_of(const Tensor& x) { return x.dim(-1) ? x.numel() / x.dim(-1) : 0; }

}  // namespace tapeformer::cuda
