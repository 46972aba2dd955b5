// Dynamic tanh.
#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct DytForward : Each {
  const T* x;
  size_t width;
  In alpha, gamma, beta;
  T* y;
  __device__ void operator()(size_t i) const {
    const size_t c = i % width;
    y[i] = from_float<T>(gamma.read(c) * tanhf(alpha.read(0) * to_float(x[i])) + beta.read(c));
  }
};

// t = tanh(alpha x), dt = (1 - t^2) (alpha dx + x dalpha): writes dx, and sums for dgamma, dbeta
// and dalpha, each of them for each channel.
template <class T>
struct DytBackward {
  const T *dy, *x;
  size_t width;
  In alpha, gamma;
  T* dx;  // or null
  bool accumulate;
  __device__ void operator()(size_t row, size_t c, float (&sum)[3]) const {
    const size_t i = row * width + c;
    const float d = to_float(dy[i]), value = to_float(x[i]), a = alpha.read(0);
    const float t = tanhf(a * value), slope = gamma.read(c) * d * (1 - t * t);
    if (dx) dx[i] = from_float<T>(accumulate ? to_float(dx[i]) + a * slope : a * slope);
    sum[0] += d * t;
    sum[1] += d;
    sum[2] += slope * value;
  }
};

}  // namespace

void dyt_forward(const Tensor& x, const Tensor& alpha, const Tensor& gamma, const Tensor& beta,
                 const Tensor& y) {
  dispatch("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(
        x.numel(),
        DytForward<T>{{}, in<T>(x), static_cast<size_t>(x.dim(-1)), alpha, gamma, beta, out<T>(y)});
  });
}

void dyt_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha, const Tensor& gamma,
                  const Destination& dx, const Destination& dalpha, const Destination& dgamma,
                  const Destination& dbeta) {
  const int64_t C = x.dim(-1), N = C ? x.numel() / C : 0;
  dispatch("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Sums<3> sums({1, N, C}, DytBackward<T>{in<T>(dy), in<T>(x), static_cast<size_t>(C), alpha,
                                                 gamma, out<T>(dx.tensor), dx.accumulate});
    sums.join(0, dgamma);
    sums.join(1, dbeta);
    if (!dalpha) return;
    const Tensor of_channels = Tensor::empty({C}, DType::f32, Device::cuda);
    sums.join(2, {of_channels});
    sum_middle(of_channels, 1, C, 1, 1, dalpha);
  });
}

}  // namespace tapeformer::kernels::cuda
