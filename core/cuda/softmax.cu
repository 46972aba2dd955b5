// Softmax and log-softmax over the last dimension: a warp for a short row, a block for a long one.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// One row for each block. Elements are read anew for each pass: the row lies in the cache.
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    softmax_forward_kernel(const T* x, size_t C, bool wide, bool logarithm, T* y) {
  x += blockIdx.x * C;
  y += blockIdx.x * C;
  float largest = -INFINITY, sum = 0;
  for_each_in_row<threads, pack_of<T>>(C, wide, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (const float value : values) largest = fmaxf(largest, value);
  });
  largest = block_max<threads>(largest);
  for_each_in_row<threads, pack_of<T>>(C, wide, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (const float value : values) sum += expf(value - largest);
  });
  sum = block_sum<threads>(sum);
  // A row of -inf: zeros, and their logarithm. NaN makes `sum` NaN, and goes on.
  const bool nothing = largest == -INFINITY;
  for_each_in_row<threads, pack_of<T>>(C, wide, [&](auto n, size_t i) {
    float values[n];
    read(x + i, values);
    for (float& value : values)
      if (nothing)
        value = value == -INFINITY ? (logarithm ? value : 0) : value;
      else if (logarithm)
        value = (value - largest) - logf(sum);
      else
        value = expf(value - largest) / sum;
    write(y + i, values);
  });
}

// From dy_i / dx_j = y_i (delta_ij - y_j); for the logarithm delta_ij - softmax(x)_j with
// softmax(x) = exp(y).
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    softmax_backward_kernel(const T* dy, const T* y, size_t C, bool wide, bool logarithm, Out dx) {
  const size_t at = blockIdx.x * C;
  float sum = 0;
  for_each_in_row<threads, pack_of<T>>(C, wide, [&](auto n, size_t i) {
    float slopes[n], values[n];
    read(dy + at + i, slopes);
    read(y + at + i, values);
    for (int k = 0; k < n; ++k) sum += slopes[k] * (logarithm ? 1 : values[k]);
  });
  sum = block_sum<threads>(sum);
  for_each_in_row<threads, pack_of<T>>(C, wide, [&](auto n, size_t i) {
    float slopes[n], values[n];
    read(dy + at + i, slopes);
    read(y + at + i, values);
    for (int k = 0; k < n; ++k)
      slopes[k] = logarithm ? slopes[k] - expf(values[k]) * sum : values[k] * (slopes[k] - sum);
    write(dx, at + i, slopes);
  });
}

// Calls f with the number of threads for rows of C elements.
template <class F>
void dispatch_threads(int64_t C, F&& f) {
  if (C <= 1024) return f(std::integral_constant<unsigned, 32>{});
  f(std::integral_constant<unsigned, 512>{});
}

void forward(const char* operation, const Tensor& x, const Tensor& y, bool logarithm) {
  const int64_t N = rows_of(x), C = x.dim(-1);
  if (N == 0) return;
  dispatch(operation, x.dtype(), [&](auto type) {
    using T = decltype(type);
    dispatch_threads(C, [&](auto threads) {
      launch<softmax_forward_kernel<decltype(threads)::value, T>>(
          static_cast<unsigned>(N), decltype(threads)::value, 0, stream(), in<T>(x),
          static_cast<size_t>(C), wide_rows<T>(C, {x, y}), logarithm, out<T>(y));
    });
  });
}

void backward(const char* operation, const Tensor& dy, const Tensor& y, bool logarithm,
              const Destination& dx) {
  const int64_t N = rows_of(y), C = y.dim(-1);
  if (N == 0) return;
  dispatch(operation, y.dtype(), [&](auto type) {
    using T = decltype(type);
    dispatch_threads(C, [&](auto threads) {
      launch<softmax_backward_kernel<decltype(threads)::value, T>>(
          static_cast<unsigned>(N), decltype(threads)::value, 0, stream(), in<T>(dy), in<T>(y),
          static_cast<size_t>(C), wide_rows<T>(C, {dy, y, dx.tensor}), logarithm, Out(dx));
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
