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
  __device__ void apply(size_t i, float (&slopes)[n]) const {
    float values[n];
    read(dy + i, slopes);
    read(z + i, values);
    with_activation(f, [&](auto constant) { multiply_by_derivative(constant, values, slopes); });
    write(dz + i, slopes);
  }
  template <int n>
  __device__ void run(size_t i) const {
    float dz_i[n];
    apply(i, dz_i);
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
    activation.apply(row * width + column, slopes);
#pragma unroll
    for (int k = 0; k < n; ++k) sums[0][k] += slopes[k];
  }
};

template <class T>
struct SwigluForward : EachInRows {
  const T* x;
  size_t width;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const T* at = x + row * 2 * width + column;
    float a[n], b[n];
    read(at, a);
    read(at + width, b);
#pragma unroll
    for (int k = 0; k < n; ++k) b[k] *= a[k] * sigmoid(a[k]);
    write(y + row * width + column, b);
  }
};

// y = silu(a) b: da = dy b silu'(a), db = dy silu(a).
template <class T>
struct SwigluBackward : EachInRows {
  const T *dy, *x;
  size_t width;
  Out dx;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const size_t at = row * 2 * width + column;
    float d[n], a[n], b[n];
    read(dy + row * width + column, d);
    read(x + at, a);
    read(x + at + width, b);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float s = sigmoid(a[k]), dy_k = d[k];
      d[k] = dy_k * b[k] * (s * (1 + a[k] * (1 - s)));
      b[k] = dy_k * (a[k] * s);
    }
    write(dx, at, d);
    write(dx, at + width, b);
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
  Gemm g{{N, O, I, false, true, ld, ld, std::max<int64_t>(O, 1)}};
  g.bias = bias;
  gemm(g, x, weight, sums);
  if (active) unary_forward(sums, y, unary_of(activation));
}

void bias_activation_backward(const Tensor& dy, const Tensor& z, Activation activation,
                              const Tensor& dz, const Destination& dbias) {
  const int64_t O = dy.dim(-1), N = rows_of(dy);
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
      sum_columns<pack_of<T>>(1, N, O, BiasActivation<T>{a, size(O)}, data, {dbias});
    else
      each_pack<pack_of<T>>(dy.numel(), a, data);
  });
}

void swiglu_forward(const Tensor& x, const Tensor& y) {
  const int64_t F = y.dim(-1), N = rows_of(y);
  dispatch("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(N, F, packed(n, {F}, {x.raw(), y.raw()}),
                    SwigluForward<T>{{}, in<T>(x), size(F), out<T>(y)});
  });
}

void swiglu_backward(const Tensor& dy, const Tensor& x, const Destination& dx) {
  const int64_t F = dy.dim(-1), N = rows_of(dy);
  dispatch("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(N, F, packed(n, {F}, {dy.raw(), x.raw(), dx.tensor.raw()}),
                    SwigluBackward<T>{{}, in<T>(dy), in<T>(x), size(F), dx});
  });
}

}  // namespace tapeformer::kernels::cuda
