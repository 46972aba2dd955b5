// Linear layers: the product with its bias by cuBLAS, the activation and its backward, and the gate
// of SwiGLU.
#include "core/cuda/activation.cuh"
#include "core/cuda/gemm.cuh"
#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// dz = dy f'(z).
template <class T>
struct ActivationBackward : EachPack {
  const T *dy, *z;
  Unary f;
  T* dz;
  template <int n>
  __device__ void slopes(size_t i, float (&slopes)[n]) const {
    float values[n];
    read(dy + i, slopes);
    read(z + i, values);
    with_activation(f, [&](auto constant) { multiply_by_derivative(constant, values, slopes); });
    write(dz + i, slopes);
  }
  template <int n>
  __device__ void run(size_t i) const {
    float dz_i[n];
    slopes(i, dz_i);
  }
};

// The same, and the sums of dz over the rows, in one visit of each element.
template <class T>
struct BiasActivation {
  static constexpr int rows_at_once = 1;
  ActivationBackward<T> activation;
  size_t width;
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[1][n]) const {
    float slopes[n];
    activation.slopes(row * width + column, slopes);
#pragma unroll
    for (int k = 0; k < n; ++k) sums[0][k] += slopes[k];
  }
};

template <class T>
struct SwigluForward : Each {
  const T* x;
  size_t width;
  T* y;
  __device__ void operator()(size_t i) const {
    const size_t at = i / width * 2 * width + i % width;
    const float a = to_float(x[at]);
    y[i] = from_float<T>(a * sigmoid(a) * to_float(x[at + width]));
  }
};

// y = silu(a) b: da = dy b silu'(a), db = dy silu(a).
template <class T>
struct SwigluBackward : Each {
  const T *dy, *x;
  size_t width;
  Out dx;
  __device__ void operator()(size_t i) const {
    const size_t at = i / width * 2 * width + i % width;
    const float a = to_float(x[at]), b = to_float(x[at + width]), d = to_float(dy[i]);
    const float s = sigmoid(a);
    dx.write(at, d * b * (s * (1 + a * (1 - s))));
    dx.write(at + width, d * (a * s));
  }
};

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    Activation activation, const Tensor& z, const Tensor& y) {
  const int64_t N = x.dim(0), I = x.dim(1), O = weight.dim(0);
  const bool active = activation != Activation::none;
  const Tensor& sums = active && z.defined() ? z : y;
  const int64_t ld = std::max<int64_t>(I, 1);
  check(I > 0, "linear: on a GPU needs at least one input channel");
  Gemm g{N, O, I, false, true, ld, ld, std::max<int64_t>(O, 1)};
  g.bias = bias;
  gemm(g, x, weight, sums);
  if (active) unary_forward(sums, y, unary_of(activation));
}

void bias_activation_backward(const Tensor& dy, const Tensor& z, Activation activation,
                              const Tensor& dz, const Destination& dbias) {
  const int64_t O = dy.dim(-1), N = O ? dy.numel() / O : 0;
  if (activation == Activation::none) {
    if (dz.defined()) copy(dy, dz);
    if (dbias) sum_middle(dy, 1, N, O, 1, dbias);
    return;
  }
  dispatch("linear", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const std::initializer_list<const void*> data = {dy.raw(), z.raw(), dz.raw()};
    const ActivationBackward<T> a{{}, in<T>(dy), in<T>(z), unary_of(activation), out<T>(dz)};
    if (dbias)
      sum_columns<pack_of<T>>(1, N, O, BiasActivation<T>{a, static_cast<size_t>(O)}, data, {dbias});
    else
      each_pack<pack_of<T>>(dy.numel(), a, data);
  });
}

void swiglu_forward(const Tensor& x, const Tensor& y) {
  dispatch("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(y.numel(), SwigluForward<T>{{}, in<T>(x), static_cast<size_t>(y.dim(-1)), out<T>(y)});
  });
}

void swiglu_backward(const Tensor& dy, const Tensor& x, const Destination& dx) {
  dispatch("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(dy.numel(),
         SwigluBackward<T>{{}, in<T>(dy), in<T>(x), static_cast<size_t>(dy.dim(-1)), dx});
  });
}

}  // namespace tapeformer::kernels::cuda
