// Reductions: sum, maximum, sum of squares.
#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// dx [outer n, inner] of dy [outer, inner], or dx [outer, n] of dy [outer].
template <class T>
struct SumBackward : EachInRows {
  const T* dy;
  size_t n, inner, width;
  float scale;
  Out dx;
  template <int columns>
  __device__ void run(size_t row, size_t column) const {
    float slopes[columns];
    if (inner == 1) {
      const float same = to_float(dy[row]);
      for (float& slope : slopes) slope = same;
    } else {
      read(dy + row / n * inner + column, slopes);
    }
    for (float& slope : slopes) slope *= scale;
    write(dx, row * width + column, slopes);
  }
};

// A value and its place: the first of the largest. NaN wins over all numbers.
struct Largest {
  float value;
  uint32_t place;
  __device__ void take(const Largest& other) {
    const bool nan = value != value, other_nan = other.value != other.value;
    const bool tie = value == other.value || (nan && other_nan);
    const bool larger = other.value > value || (other_nan && !nan);
    if (larger || (tie && other.place < place)) *this = other;
  }
};

constexpr Largest nothing() { return {-INFINITY, UINT32_MAX}; }

// Of a warp, for all its threads.
__device__ inline Largest warp_largest(Largest x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float value = __shfl_xor_sync(whole_warp, x.value, lanes);
    x.take({value, __shfl_xor_sync(whole_warp, x.place, lanes)});
  }
  return x;
}

// One thread for each result.
template <class T>
struct MaxForward : Each {
  const T* x;
  size_t n, inner;
  T* y;
  int32_t* index;
  __device__ void operator()(size_t i) const {
    const T* column = x + i / inner * n * inner + i % inner;
    Largest best = nothing();
    for (size_t k = 0; k < n; ++k)
      best.take({to_float(column[k * inner]), static_cast<uint32_t>(k)});
    y[i] = from_float<T>(best.value);
    index[i] = static_cast<int32_t>(best.place);
  }
};

// The same where results are of rows of n: one block for each.
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    max_of_row_kernel(const T* x, size_t n, bool packs, T* y, int32_t* index) {
  SHARED(Largest, of_warps, [32]);
  const T* row = x + blockIdx.x * n;
  Largest best = nothing();
  for_each_in_row<threads, pack_of<T>>(n, packs, [&](auto columns, size_t i) {
    float values[decltype(columns)::value];
    read(row + i, values);
#pragma unroll
    for (unsigned k = 0; k < decltype(columns)::value; ++k)
      best.take({values[k], static_cast<uint32_t>(i) + k});
  });
  best = warp_largest(best);
  if (threads > 32) {
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
    __syncthreads();
    best = warp_largest(threadIdx.x % 32 < threads / 32 ? of_warps[threadIdx.x % 32] : nothing());
  }
  if (threadIdx.x != 0) return;
  y[blockIdx.x] = from_float<T>(best.value);
  index[blockIdx.x] = static_cast<int32_t>(best.place);
}

template <class T>
struct MaxBackward : Each {
  const T* dy;
  const int32_t* index;
  size_t n, inner;
  Out dx;
  __device__ void operator()(size_t i) const {
    const size_t result = i / (n * inner) * inner + i % inner;
    const bool here = static_cast<size_t>(index[result]) == i / inner % n;
    dx.write(i, here ? to_float(dy[result]) : 0);
  }
};

constexpr unsigned square_threads = 256;
constexpr int64_t square_chunk = 16384;

// partial [chunks]: the sum of x^2 over each chunk, in f64.
template <class T>
__global__ void __launch_bounds__(square_threads)
    sum_of_squares_kernel(const T* x, size_t n, double* partial) {
  SHARED(double, part, [square_threads]);
  const size_t begin = size_t{blockIdx.x} * square_chunk;
  const size_t end = begin + square_chunk < n ? begin + square_chunk : n;
  double sum = 0;
  for (size_t i = begin + threadIdx.x; i < end; i += square_threads) {
    const double value = to_float(x[i]);
    sum += value * value;
  }
  part[threadIdx.x] = sum;
  for (unsigned step = square_threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = part[0];
}

// y [1] = the sum of all partial sums, by one block.
__global__ void __launch_bounds__(square_threads)
    join_squares_kernel(const double* partial, size_t n, Out y) {
  SHARED(double, part, [square_threads]);
  double sum = 0;
  for (size_t i = threadIdx.x; i < n; i += square_threads) sum += partial[i];
  part[threadIdx.x] = sum;
  for (unsigned step = square_threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
  }
  if (threadIdx.x == 0) y.write(0, static_cast<float>(part[0]));
}

template <unsigned threads, class T>
void max_of_rows(const Tensor& x, int64_t n, const Tensor& y, const Tensor& index) {
  launch<max_of_row_kernel<threads, T>>(grid_of(y.numel()), threads, 0, stream(), in<T>(x), size(n),
                                        packed(pack_of<T>, {n}, {x.raw()}), out<T>(y),
                                        out<int32_t>(index));
}

}  // namespace

void sum_forward(const Tensor& x, int dim, double scale, const Destination& y) {
  const Around around(x.shape(), dim);
  sum_middle(x, around.outer, around.n, around.inner, scale, y);
}

void sum_backward(const Tensor& dy, int dim, double scale, const Destination& dx) {
  const Around around(dx.tensor.shape(), dim);
  dispatch("sum", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    const int64_t width = around.inner == 1 ? around.n : around.inner;
    each_in_rows<n>(width ? dx.tensor.numel() / width : 0, width,
                    packed(n, {width}, {dy.raw(), dx.tensor.raw()}),
                    SumBackward<T>{{},
                                   in<T>(dy),
                                   size(around.n),
                                   size(around.inner),
                                   size(width),
                                   static_cast<float>(scale),
                                   dx});
  });
}

void max_forward(const Tensor& x, int dim, const Tensor& y, const Tensor& index) {
  const Around around(x.shape(), dim);
  if (y.numel() == 0) return;
  const int64_t n = around.n, inner = around.inner;
  dispatch("max", x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (inner > 1)
      each(y.numel(),
           MaxForward<T>{{}, in<T>(x), size(n), size(inner), out<T>(y), out<int32_t>(index)});
    else if (n <= 1024)
      max_of_rows<32, T>(x, n, y, index);
    else
      max_of_rows<256, T>(x, n, y, index);
  });
}

void max_backward(const Tensor& dy, const Tensor& index, int dim, const Destination& dx) {
  const Around around(dx.tensor.shape(), dim);
  dispatch("max", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    each(dx.tensor.numel(),
         MaxBackward<T>{{}, in<T>(dy), in<int32_t>(index), size(around.n), size(around.inner), dx});
  });
}

void sum_of_squares(const Tensor& x, const Tensor& y) {
  const unsigned chunks = blocks_for(x.numel(), square_chunk);
  const Tensor partial = Tensor::empty({chunks}, DType::f64, Device::cuda);
  dispatch("sum_of_squares", x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (chunks)
      launch<sum_of_squares_kernel<T>>(chunks, square_threads, 0, stream(), in<T>(x),
                                       size(x.numel()), out<double>(partial));
  });
  launch<join_squares_kernel>(1, square_threads, 0, stream(), in<double>(partial), size(chunks),
                              Out(y));
}

}  // namespace tapeformer::kernels::cuda
