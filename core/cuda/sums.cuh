// Sums over the rows of matrices in two steps, in an order that depends on the shapes alone: blocks
// sum chunks of rows, then others join the chunks. No atomics.
#pragma once

#include <bit>

#include "core/cuda/pack.cuh"

namespace tapeformer::cuda {

inline constexpr unsigned most_sum_threads = 256;

/// How `outer` matrices [rows, width] are summed: a block takes one chunk of rows, threads / lanes
/// of them at a time, with `lanes` threads beside each other on each. Both are powers of two. A
/// kernel divides these 32-bit numbers only; of rows a chunk has fewer than 2^32.
struct SumPlan {
  size_t outer, rows, width;
  unsigned lanes = 32, threads = most_sum_threads, chunks = 1;
  size_t chunk_rows = rows;

  void use_threads(size_t wanted) {
    threads = static_cast<unsigned>(std::clamp<size_t>(wanted, 32, most_sum_threads));
  }
  size_t column_blocks(unsigned n) const { return (width + n * lanes - 1) / (n * lanes); }
};

/// The plan for threads that take n columns each, where they can.
inline SumPlan sum_plan(size_t outer, size_t rows, size_t width, unsigned n) {
  SumPlan plan{outer, rows, width};
  // Narrower blocks move shorter stretches of memory, but leave fewer lanes idle in the last one.
  const size_t packs = width / n;
  while (plan.lanes > 1 && (plan.lanes >= 2 * packs || (plan.lanes > 8 && packs % plan.lanes)))
    plan.lanes /= 2;
  constexpr size_t enough_blocks = 2048, fewest_turns = 4;
  plan.use_threads(plan.lanes * std::bit_floor(rows / fewest_turns));
  const size_t others = outer * plan.column_blocks(n);
  const size_t most = rows * plan.lanes / (plan.threads * fewest_turns);
  const size_t chunks = std::max<size_t>(1, std::min((enough_blocks + others - 1) / others, most));
  plan.chunk_rows = std::max<size_t>(1, (rows + chunks - 1) / chunks);
  plan.chunks =
      static_cast<unsigned>((std::max<size_t>(1, rows) + plan.chunk_rows - 1) / plan.chunk_rows);
  return plan;
}

/// Sums [outer, chunks, K, width], each handed to `to` with its index: f.run<n>(row, column, sums)
/// adds to sums [K][n] what n columns of a row bring; rows are counted through all matrices. A
/// thread reads F::rows_at_once of them before it adds: 1 where f writes, which holds up reads,
/// or where it reads several matrices.
template <int K, int n, class F, class To>
__global__ void __launch_bounds__(most_sum_threads)
    column_sums_kernel(SumPlan plan, unsigned column_blocks, F f, To to) {
  SHARED(float, part, [n][most_sum_threads / 2]);
  const size_t column =
      n * (size_t{blockIdx.x % column_blocks} * plan.lanes + threadIdx.x % plan.lanes);
  const unsigned place = blockIdx.x / column_blocks, chunk = place % plan.chunks;
  const size_t first = place / plan.chunks * plan.rows, begin = first + chunk * plan.chunk_rows;
  const size_t end = chunk + 1 < plan.chunks ? begin + plan.chunk_rows : first + plan.rows;
  const unsigned at_once = plan.threads / plan.lanes;
  const size_t row = begin + threadIdx.x / plan.lanes;
  float sums[K][n] = {};
  if (column < plan.width && row < end) {
    // Counted, so that they unroll.
    const unsigned turns = (static_cast<unsigned>(end - row) + at_once - 1) / at_once;
    [[maybe_unused]] constexpr int rows_at_once = F::rows_at_once;
#pragma unroll rows_at_once
    for (unsigned turn = 0; turn < turns; ++turn)
      f.template run<n>(row + size_t{turn} * at_once, column, sums);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    for (unsigned half = plan.threads / 2; half >= plan.lanes; half /= 2) {
      __syncthreads();  // the last readers are done
      if (threadIdx.x >= half && threadIdx.x < 2 * half)
        for (int j = 0; j < n; ++j) part[j][threadIdx.x - half] = sums[k][j];
      __syncthreads();
      if (threadIdx.x < half)
        for (int j = 0; j < n; ++j) sums[k][j] += part[j][threadIdx.x];
    }
    if (threadIdx.x < plan.lanes && column < plan.width)
      to.write((size_t{place} * K + k) * plan.width + column, sums[k]);
  }
}

/// The elements of matrices [rows, K, width].
template <class T, int K = 1>
struct Elements {
  static constexpr int rows_at_once = 4;
  const T* x;
  size_t width;
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[K][n]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float values[n];
      read(x + (row * K + k) * width + column, values);
#pragma unroll
      for (int j = 0; j < n; ++j) sums[k][j] += values[j];
    }
  }
};

/// Packs of elements that are summed all: each is a row of one column.
template <class T>
struct ElementsOfRows {
  static constexpr int rows_at_once = 4;
  const T* x;
  bool packs;  // whether they can be read as packs
  template <int n>
  __device__ void run(size_t row, size_t, float (&sums)[1][n]) const {
    constexpr int size = pack_of<T>;
    const T* from = x + row * size;
    float values[size];
    if (packs) read(from, values);
#pragma unroll
    for (int k = 0; k < size; ++k) sums[0][0] += packs ? values[k] : to_float(from[k]);
  }
};

struct PartialSums {
  float* to;
  template <int n>
  __device__ void write(size_t at, const float (&sums)[n]) const {
    tapeformer::cuda::write(to + at, sums);
  }
};

/// Sums of [outer, K, width], each kind to its own place.
template <int K>
struct JoinedSums {
  size_t width;
  float scale;
  Out to[K];
  __device__ void write(size_t at, const float (&sum)[1]) const {
    const size_t kind = at / width % K, i = at / width / K * width + at % width;
#pragma unroll
    for (size_t k = 0; k < K; ++k)
      if (kind == k && to[k].data) to[k].write(i, scale * sum[0]);
  }
};

template <int K, int n, class F, class To>
void launch_sums(const SumPlan& plan, const F& f, const To& to) {
  const size_t column_blocks = plan.column_blocks(n);
  launch<column_sums_kernel<K, n, F, To>>(
      grid_of(static_cast<int64_t>(plan.outer * plan.chunks * column_blocks)), plan.threads, 0,
      stream(), plan, static_cast<unsigned>(column_blocks), f, to);
}

/// results[k] [outer, width] (+)= scale * sum k over the rows of `outer` matrices [rows, width],
/// where it is asked for. n columns at a time where width and `data`, all that f touches, allow it.
template <int n, int K, class F>
void sum_columns(int64_t outer, int64_t rows, int64_t width, const F& f,
                 std::initializer_list<const void*> data, const Destination (&results)[K],
                 double scale = 1) {
  if (outer * width == 0) return;
  // The plan, and with it the sums' bits, is the same wherever the data begins.
  const SumPlan plan = sum_plan(size(outer), size(rows), size(width), width % n ? 1 : n);
  const Tensor partial =
      Tensor::empty({outer, static_cast<int64_t>(plan.chunks), K, width}, DType::f32, Device::cuda);
  const PartialSums to{out<float>(partial)};
  if (packed(n, {width}, data))
    launch_sums<K, n>(plan, f, to);
  else
    launch_sums<K, 1>(plan, f, to);

  // 8 columns are what memory moves at once.
  const bool flat = plan.chunks == 1;
  SumPlan join{flat ? 1 : plan.outer, plan.chunks, (flat ? plan.outer : 1) * K * plan.width};
  const size_t at_once = std::bit_ceil(plan.chunks),
               most_lanes = most_sum_threads / std::min<size_t>(at_once, most_sum_threads / 8);
  join.lanes = static_cast<unsigned>(std::min(std::bit_ceil(join.width), most_lanes));
  join.use_threads(join.lanes * at_once);
  JoinedSums<K> joined{plan.width, static_cast<float>(scale), {}};
  std::copy(results, results + K, joined.to);
  launch_sums<1, 1>(join, Elements<float>{to.to, join.width}, joined);
}

/// d [outer, inner] (+)= scale * the sum of x [outer, n, inner] over n.
inline void sum_middle(const Tensor& x, int64_t outer, int64_t n, int64_t inner, double scale,
                       const Destination& d) {
  dispatch("sum", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int pack = pack_of<T>;
    if (inner == 1 && n % pack == 0)
      return sum_columns<1>(outer, n / pack, 1, ElementsOfRows<T>{in<T>(x), packed({x.raw()})}, {},
                            {d}, scale);
    sum_columns<pack>(outer, n, inner, Elements<T>{in<T>(x), size(inner)}, {x.raw()}, {d}, scale);
  });
}

}  // namespace tapeformer::cuda
