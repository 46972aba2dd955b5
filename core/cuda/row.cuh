// Rows of a matrix, each held in the registers of a group of threads: a warp for short rows, a
// block for long ones. So a row is read from memory once, however often a kernel needs it.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/cuda/sums.cuh"

namespace tapeformer::cuda {

/// `threads` threads hold `items` elements each, in runs of n that lie together: thread t holds the
/// runs that begin at n t, n (t + threads), ...
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

  /// Calls f(k, i) for every run, n elements from i on, of a row of C that this thread holds, as
  /// its k-th element and those after it. The last run may reach beyond the row.
  template <int n, class F>
  __device__ static void for_each(int C, const F& f) {
    static_assert(items % n == 0);
#pragma unroll
    for (int k = 0; k < items; k += n)
      if (const int i = n * thread() + k * threads; i < C) f(k, i);
  }
};

/// Where a run lies: from `i` on in a row of C, whose runs are all whole packs or not.
struct Run {
  int i, C;
  bool wide;
};

/// to = a run of the row; 0 beyond its end.
template <int n, class T>
__device__ void read_run(const T* row, const Run& run, float (&to)[n]) {
  if (run.wide) return read(row + run.i, to);
#pragma unroll
  for (int j = 0; j < n; ++j) to[j] = run.i + j < run.C ? to_float(row[run.i + j]) : 0;
}
template <int n, class T>
__device__ void write_run(T* row, const Run& run, const float (&values)[n]) {
  if (run.wide) return write(row + run.i, values);
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (run.i + j < run.C) row[run.i + j] = from_float<T>(values[j]);
}

/// Calls f(RowLayout) with the smallest that holds C elements.
template <class F>
void dispatch_row(const char* operation, int64_t C, F&& f) {
  if (C <= 256) return f(RowLayout<32, 8>{});
  if (C <= 1024) return f(RowLayout<128, 8>{});
  check(C <= 8192, operation, ": on a GPU rows have at most 8192 elements, got ", C,
        "; use the CPU");
  f(RowLayout<512, 16>{});
}

/// Whether rows of C elements of T are whole packs in all of these, of which some may be undefined.
template <class T>
bool wide_rows(int64_t C, std::initializer_list<Tensor> rows) {
  bool wide = C % pack_of<T> == 0;
  for (const Tensor& x : rows) wide = wide && packed({in<T>(x)});
  return wide;
}

inline int64_t rows_of(const Tensor& x) { return x.dim(-1) ? x.numel() / x.dim(-1) : 0; }

}  // namespace tapeformer::cuda
