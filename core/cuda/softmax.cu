// Softmax and log-softmax over the last dimension: a warp for a short row, a block for a long one.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// One row for each block. Elements are read anew for each pass: the row lies in the cache.
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    softmax_forward_kernel(const T* x, size_t C, bool logarithm, T* y) {
  x += blockIdx.x * C;
  y += blockIdx.x * C;
  float largest = -INFINITY, sum = 0;
  for (size_t i = threadIdx.x; i < C; i += threads) largest = fmaxf(largest, to_float(x[i]));
  largest = block_max<threads>(largest);
  for (size_t i = threadIdx.x; i < C; i += threads) sum += expf(to_float(x[i]) - largest);
  sum = block_sum<threads>(sum);
  // A row of -inf: zeros, and their logarithm. NaN makes `sum` NaN, and goes on.
  const bool nothing = largest == -INFINITY;
  for (size_t i = threadIdx.x; i < C; i += threads) {
    const float value = to_float(x[i]);
    if (nothing)
      y[i] = from_float<T>(value == -INFINITY ? (logarithm ? value : 0) : value);
    else if (logarithm)
      y[i] = from_float<T>((value - largest) - logf(sum));
    else
      y[i] = from_float<T>(expf(value - largest) / sum);
  }
}

// From dy_i / dx_j = y_i (delta_ij - y_j); for the logarithm delta_ij - softmax(x)_j with
// softmax(x) = exp(y).
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    softmax_backward_kernel(const T* dy, const T* y, size_t C, bool logarithm, Out dx) {
  const size_t at = blockIdx.x * C;
  float sum = 0;
  for (size_t i = threadIdx.x; i < C; i += threads)
    sum += to_float(dy[at + i]) * (logarithm ? 1 : to_float(y[at + i]));
  sum = block_sum<threads>(sum);
  for (size_t i = threadIdx.x; i < C; i += threads) {
    const float slope = to_float(dy[at + i]), value = to_float(y[at + i]);
    dx.write(at + i, logarithm ? slope - expf(value) * sum : value * (slope - sum));
  }
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
          static_cast<size_t>(C), logarithm, out<T>(y));
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
          static_cast<size_t>(C), logarithm, Out(dx));
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
