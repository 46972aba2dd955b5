// Softmax and log-softmax over the last dimension.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// y = scale z + shift, where z is exp(x - max x) for softmax and x - max x for its logarithm. A sum
// of 0 is that of a row of -inf: zeros, and their logarithm. NaN makes it NaN, and goes on.
struct Ending {
  float scale, shift = 0;
  __device__ Ending(float sum, bool logarithm) : scale(logarithm ? 1 : 0) {
    if (sum == 0) return;
    if (logarithm)
      shift = -logf(sum);
    else
      scale = 1 / sum;
  }
  __device__ float operator()(float z) const { return scale * z + shift; }
};

template <class Row, class T>
__global__ void __launch_bounds__(Row::most_block, 1)
    softmax_forward_kernel(const T* x, size_t rows, int C, bool logarithm, T* y) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row();
  if (row >= rows) return;  // a whole warp, and warps do not wait for each other here
  const Held<Row, T> values(x, row * C, C);
  float z[Row::runs][n];
  float largest = -FLT_MAX, sum = 0;  // finite: -inf less it is -inf, and never NaN
  Row::for_each(C, [&](int k, int) {
    for (int j = 0; j < n; ++j) {
      z[k][j] = values(k, j);
      largest = fmaxf(largest, z[k][j]);
    }
  });
  largest = Row::max(largest);
  Row::for_each(C, [&](int k, int) {
    for (int j = 0; j < n; ++j) {
      const float l = z[k][j] - largest, power = fast_exp(l);
      sum += power;
      z[k][j] = logarithm ? l : power;
    }
  });
  const Ending ending(Row::sum(sum), logarithm);
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j) z[k][j] = ending(z[k][j]);
    write(y + row * C + i, z[k]);
  });
}

// A row that no block's registers hold is read anew for each pass: it lies in the cache.
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    long_softmax_forward_kernel(const T* x, size_t C, bool packs, bool logarithm, T* y) {
  x += blockIdx.x * C;
  y += blockIdx.x * C;
  float largest = -FLT_MAX, sum = 0;
  for_each_in_row<threads, pack_of<T>>(C, packs, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (const float value : values) largest = fmaxf(largest, value);
  });
  largest = block_max(largest);
  for_each_in_row<threads, pack_of<T>>(C, packs, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (const float value : values) sum += fast_exp(value - largest);
  });
  const Ending ending(block_sum(sum), logarithm);
  for_each_in_row<threads, pack_of<T>>(C, packs, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (float& value : values)
      value = ending(logarithm ? value - largest : fast_exp(value - largest));
    write(y + i, values);
  });
}

// From dy_i / dx_j = y_i (delta_ij - y_j); for the logarithm delta_ij - p_j with p = exp(y). So
//   dx = q - p sum(q), with p = y and q = y dy, but q = dy for the logarithm.
struct Slope {
  float p, q;
  __device__ Slope(float dy, float y, bool logarithm)
      : p(logarithm ? fast_exp(y) : y), q(logarithm ? dy : y * dy) {}
};

template <class Row, class T>
__global__ void __launch_bounds__(Row::most_block, 1)
    softmax_backward_kernel(const T* dy, const T* y, size_t rows, int C, bool logarithm, Out dx) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row(), at = row * C;
  if (row >= rows) return;
  const Held<Row, T> slopes(dy, at, C), values(y, at, C);
  float p[Row::runs][n], q[Row::runs][n];
  float sum = 0;
  Row::for_all(C, [&](int k, int j) {
    const Slope slope(slopes(k, j), values(k, j), logarithm);
    p[k][j] = slope.p;
    sum += q[k][j] = slope.q;
  });
  sum = Row::sum(sum);
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j) q[k][j] -= p[k][j] * sum;
    write(dx, at + i, q[k]);
  });
}

template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    long_softmax_backward_kernel(const T* dy, const T* y, size_t C, bool packs, bool logarithm,
                                 Out dx) {
  const size_t at = blockIdx.x * C;
  float sum = 0;
  for_each_in_row<threads, pack_of<T>>(C, packs, [&](auto n, size_t i) {
    float slopes[n], values[n];
    read(dy + at + i, slopes);
    read(y + at + i, values);
    for (int k = 0; k < n; ++k) sum += Slope(slopes[k], values[k], logarithm).q;
  });
  sum = block_sum(sum);
  for_each_in_row<threads, pack_of<T>>(C, packs, [&](auto n, size_t i) {
    float slopes[n], values[n];
    read(dy + at + i, slopes);
    read(y + at + i, values);
    for (int k = 0; k < n; ++k) {
      const Slope slope(slopes[k], values[k], logarithm);
      slopes[k] = slope.q - slope.p * sum;
    }
    write(dx, at + i, slopes);
  });
}

constexpr unsigned long_threads = 512;

void forward(const char* operation, const Tensor& x, const Tensor& y, bool logarithm) {
  const int64_t N = rows_of(x), C = x.dim(-1);
  if (N == 0) return;
  dispatch(operation, x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (C > longest_row)
      return launch<long_softmax_forward_kernel<long_threads, T>>(
          grid_of(N), long_threads, 0, stream(), in<T>(x), size(C), packed_rows<T>(C, {x, y}),
          logarithm, out<T>(y));
    dispatch_row<T>(operation, C, {x, y}, [&](auto layout) {
      using Row = decltype(layout);
      launch<softmax_forward_kernel<Row, T>>(blocks_for(N, Row::rows), Row::block(C), 0, stream(),
                                             in<T>(x), size(N), static_cast<int>(C), logarithm,
                                             out<T>(y));
    });
  });
}

void backward(const char* operation, const Tensor& dy, const Tensor& y, bool logarithm,
              const Destination& dx) {
  const int64_t N = rows_of(y), C = y.dim(-1);
  if (N == 0) return;
  dispatch(operation, y.dtype(), [&](auto type) {
    using T = decltype(type);
    if (C > longest_row)
      return launch<long_softmax_backward_kernel<long_threads, T>>(
          grid_of(N), long_threads, 0, stream(), in<T>(dy), in<T>(y), size(C),
          packed_rows<T>(C, {dy, y, dx.tensor}), logarithm, Out(dx));
    dispatch_row<T>(operation, C, {dy, y, dx.tensor}, [&](auto layout) {
      using Row = decltype(layout);
      launch<softmax_backward_kernel<Row, T>>(blocks_for(N, Row::rows), Row::block(C), 0, stream(),
                                              in<T>(dy), in<T>(y), size(N), static_cast<int>(C),
                                              logarithm, Out(dx));
    });
  });
}

}  // namespace

void softmax_forward(const Tensor& x, const Tensor& y) { forward("softmax", x, y, false); }
void softmax_backward(const Tensor& dy, const Tensor& y, const Destination& dx) {
  backward("softmax", dy, y, false, dx);
}
void log_softmax_forward(const Tensor& x, const Tensor& y) { forward("log_softmax", x, y, true); }
void log_softmax_backward(const Tensor& dy, const Tensor& y, const Destination& dx) {
  backward("log_softmax", dy, y, true, dx);
}

}  // namespace tapeformer::kernels::cuda
