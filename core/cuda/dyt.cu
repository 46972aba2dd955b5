// Dynamic tanh.
#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct DytForward : EachInRows {
  const T* x;
  size_t width;
  In alpha, gamma, beta;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    float values[n], gains[n], shifts[n];
    read(x + row * width + column, values);
    read(gamma, column, gains);
    read(beta, column, shifts);
    const float a = alpha.read(0);
#pragma unroll
    for (int k = 0; k < n; ++k) values[k] = gains[k] * tanhf(a * values[k]) + shifts[k];
    write(y + row * width + column, values);
  }
};

// t = tanh(alpha x), dt = (1 - t^2) (alpha dx + x dalpha): writes dx, and sums for dgamma, dbeta
// and dalpha, each of them for each channel.
template <class T>
struct DytBackward {
  static constexpr int rows_at_once = 1;
  const T *dy, *x;
  size_t width;
  In alpha, gamma;
  Out dx;
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[3][n]) const {
    const size_t i = row * width + column;
    float slopes[n], values[n], gains[n];
    read(dy + i, slopes);
    read(x + i, values);
    read(gamma, column, gains);
    const float a = alpha.read(0);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float t = tanhf(a * values[k]), slope = gains[k] * slopes[k] * (1 - t * t);
      sums[0][k] += slopes[k] * t;
      sums[1][k] += slopes[k];
      sums[2][k] += slope * values[k];
      slopes[k] = a * slope;
    }
    if (dx.data) write(dx, i, slopes);
  }
};

}  // namespace

void dyt_forward(const Tensor& x, const Tensor& alpha, const Tensor& gamma, const Tensor& beta,
                 const Tensor& y) {
  const int64_t C = x.dim(-1), N = rows_of(x);
  dispatch("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(N, C, packed(n, {C}, {x.raw(), gamma.raw(), beta.raw(), y.raw()}),
                    DytForward<T>{{}, in<T>(x), size(C), alpha, gamma, beta, out<T>(y)});
  });
}

void dyt_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha, const Tensor& gamma,
                  const Destination& dx, const Destination& dalpha, const Destination& dgamma,
                  const Destination& dbeta) {
  const int64_t C = x.dim(-1), N = rows_of(x);
  dispatch("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Tensor of_channels = dalpha ? Tensor::empty({C}, DType::f32, Device::cuda) : Tensor{};
    sum_columns<pack_of<T>>(1, N, C, DytBackward<T>{in<T>(dy), in<T>(x), size(C), alpha, gamma, dx},
                            {dy.raw(), x.raw(), gamma.raw(), in<T>(dx.tensor)},
                            {dgamma, dbeta, {of_channels}});
    if (dalpha) sum_middle(of_channels, 1, C, 1, 1, dalpha);
  });
}

}  // namespace tapeformer::kernels::cuda
