// Sums in two steps, in an order that depends on the shapes alone: blocks sum chunks of rows, then
// one thread for each result joins the chunks one after the other. No atomics.
#pragma once

#include "core/cuda/device.cuh"

namespace tapeformer::cuda {

inline constexpr unsigned sum_threads = 256, sum_columns = 32, sum_rows = sum_threads / sum_columns;

/// How the rows of `outer` matrices [rows, width] are cut into chunks.
struct SumPlan {
  int64_t outer, rows, width, chunks, chunk_rows;

  SumPlan(int64_t outer, int64_t rows, int64_t width) : outer(outer), rows(rows), width(width) {
    constexpr int64_t enough_blocks = 1024, fewest_rows = 64;
    const int64_t others = std::max<int64_t>(1, outer * column_blocks());
    const int64_t wanted = (enough_blocks + others - 1) / others;
    const int64_t most = std::max<int64_t>(1, (rows + fewest_rows - 1) / fewest_rows);
    chunk_rows = std::max<int64_t>(1, (rows + std::min(wanted, most) - 1) / std::min(wanted, most));
    chunks = std::max<int64_t>(1, (rows + chunk_rows - 1) / chunk_rows);
  }
  int64_t column_blocks() const { return width == 1 ? 1 : (width + sum_columns - 1) / sum_columns; }
};

/// partial [outer, chunks, K, width]: K sums for each column. f(row, column, sum) adds to `sum` [K]
/// what the element brings; rows are counted through all matrices. 32 columns by 8 rows at a time.
template <int K, class F>
__global__ void __launch_bounds__(sum_threads)
    column_sums_kernel(size_t rows, size_t width, size_t chunk_rows, size_t chunks, F f,
                       float* partial) {
  SHARED(float, part, [sum_rows][sum_columns + 1]);
  const size_t column_blocks = (width + sum_columns - 1) / sum_columns;
  const size_t column = blockIdx.x % column_blocks * sum_columns + threadIdx.x % sum_columns;
  const size_t chunk = blockIdx.x / column_blocks % chunks;
  const size_t matrix = blockIdx.x / column_blocks / chunks;
  const size_t begin = chunk * chunk_rows,
               end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  const unsigned lane = threadIdx.x % sum_columns, row = threadIdx.x / sum_columns;
  float sum[K] = {};
  // More rows at once hide the memory's latency, but several sums then need too many registers.
  [[maybe_unused]] constexpr int rows_at_once = K == 1 ? 4 : 1;
  if (column < width)
#pragma unroll rows_at_once
    for (size_t i = begin + row; i < end; i += sum_rows) f(matrix * rows + i, column, sum);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    part[row][lane] = sum[k];
    __syncthreads();
    if (row == 0 && column < width) {
      float total = 0;
      for (unsigned r = 0; r < sum_rows; ++r) total += part[r][lane];
      partial[((matrix * chunks + chunk) * K + k) * width + column] = total;
    }
    __syncthreads();
  }
}

/// The same for one column: partial [outer, chunks, K], all threads on one chunk of it.
template <int K, class F>
__global__ void __launch_bounds__(sum_threads)
    row_sums_kernel(size_t rows, size_t chunk_rows, size_t chunks, F f, float* partial) {
  const size_t chunk = blockIdx.x % chunks, matrix = blockIdx.x / chunks;
  const size_t begin = chunk * chunk_rows,
               end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[K] = {};
  for (size_t i = begin + threadIdx.x; i < end; i += sum_threads) f(matrix * rows + i, 0, sum);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const float total = block_sum<sum_threads>(sum[k]);
    if (threadIdx.x == 0) partial[blockIdx.x * K + k] = total;
  }
}

/// Result (matrix, column) = scale * the sum over the chunks of sum k.
struct JoinSums : Each {
  const float* partial;
  size_t chunks, kinds, k, width;
  float scale;
  Out result;
  __device__ void operator()(size_t i) const {
    const size_t matrix = i / width, column = i % width;
    float total = 0;
    for (size_t chunk = 0; chunk < chunks; ++chunk)
      total += partial[((matrix * chunks + chunk) * kinds + k) * width + column];
    result.write(i, scale * total);
  }
};

/// K sums over the rows of matrices, kept until they are joined.
template <int K>
class Sums {
 public:
  template <class F>
  Sums(const SumPlan& plan, const F& f)
      : plan_(plan),
        partial_(
            Tensor::empty({plan.outer, plan.chunks, K, plan.width}, DType::f32, Device::cuda)) {
    if (partial_.numel() == 0) return;
    const auto blocks = static_cast<unsigned>(plan.outer * plan.chunks * plan.column_blocks());
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    if (plan.width == 1)
      launch<row_sums_kernel<K, F>>(blocks, sum_threads, 0, stream(), size(plan.rows),
                                    size(plan.chunk_rows), size(plan.chunks), f,
                                    out<float>(partial_));
    else
      launch<column_sums_kernel<K, F>>(blocks, sum_threads, 0, stream(), size(plan.rows),
                                       size(plan.width), size(plan.chunk_rows), size(plan.chunks),
                                       f, out<float>(partial_));
  }

  /// d [outer, width] (+)= scale * sum k.
  void join(int k, const Destination& d, double scale = 1) const {
    if (!d) return;
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    each(plan_.outer * plan_.width, JoinSums{{},
                                             in<float>(partial_),
                                             size(plan_.chunks),
                                             K,
                                             size(k),
                                             size(plan_.width),
                                             static_cast<float>(scale),
                                             d});
  }

 private:
  SumPlan plan_;
  Tensor partial_;
};

/// The elements of one tensor, for Sums.
template <class T>
struct Elements {
  const T* x;
  size_t width;
  __device__ void operator()(size_t row, size_t column, float (&sum)[1]) const {
    sum[0] += to_float(x[row * width + column]);
  }
};

/// d [outer, inner] (+)= scale * the sum of x [outer, n, inner] over n.
inline void sum_middle(const Tensor& x, int64_t outer, int64_t n, int64_t inner, double scale,
                       const Destination& d) {
  dispatch("sum", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Elements<T> elements{in<T>(x), static_cast<size_t>(inner)};
    Sums<1>({outer, n, inner}, elements).join(0, d, scale);
  });
}

/// A tensor's sizes seen around one dimension: [outer, n, inner].
struct Around {
  int64_t outer = 1, n = 1, inner = 1;
  Around(const Shape& shape, int dim) {
    for (int i = 0; i < shape.rank(); ++i) (i < dim ? outer : i == dim ? n : inner) *= shape[i];
  }
};

}  // namespace tapeformer::cuda
