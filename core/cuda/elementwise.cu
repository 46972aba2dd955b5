// Element-wise kernels of one tensor: filling, copying, functions and their gradients.
#include "core/cuda/activation.cuh"
#include "core/cuda/pack.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct Fill : Each {
  T* x;
  T value;
  __device__ void operator()(size_t i) const { x[i] = value; }
};

template <class To, class From>
__device__ To cast(From x) {
  if constexpr (std::is_same_v<From, To>)
    return x;
  else if constexpr (std::is_same_v<To, int32_t>)
    return static_cast<int32_t>(to_float(x));
  else
    return from_float<To>(to_float(x));
}

template <class From, class To>
struct Copy : EachPack {
  const From* x;
  To* y;
  template <int n>
  __device__ void run(size_t i) const {
    const auto from = load<n>(x + i);
    Pack<To, n> to;
#pragma unroll
    for (int k = 0; k < n; ++k) to.at[k] = cast<To>(from.at[k]);
    store(y + i, to);
  }
};

template <class T>
struct Affine : EachPack {
  const T* x;
  float scale, shift;
  Out y;
  template <int n>
  __device__ void run(size_t i) const {
    float values[n];
    read(x + i, values);
    for (float& value : values) value = scale * value + shift;
    write(y, i, values);
  }
};

template <class T>
struct UnaryForward : EachPack {
  const T* x;
  T* y;
  Unary f;
  template <int n>
  __device__ void run(size_t i) const {
    float values[n];
    read(x + i, values);
    with_unary(f, [&](auto constant) {
#pragma unroll
      for (float& value : values) value = value_of(constant, value);
    });
    write(y + i, values);
  }
};

template <class T>
struct UnaryBackward : EachPack {
  const T *dy, *kept;
  Unary f;
  Out dx;
  template <int n>
  __device__ void run(size_t i) const {
    float slopes[n], values[n];
    read(dy + i, slopes);
    read(kept + i, values);
    with_unary(f, [&](auto constant) { multiply_by_derivative(constant, values, slopes); });
    write(dx, i, slopes);
  }
};

// x^e; powf is slow and loses digits where e is a whole or half number that formulas use.
__device__ inline float power(float x, float e) {
  if (e == 0) return 1;
  if (e == 1) return x;
  if (e == 2) return x * x;
  if (e == 3) return x * x * x;
  if (e == -1) return 1 / x;
  if (e == 0.5f) return sqrtf(x);
  if (e == -0.5f) return 1 / sqrtf(x);
  if (e == -2) return 1 / (x * x);
  return powf(x, e);
}

template <class T>
struct PowerForward : Each {
  const T* x;
  float exponent;
  T* y;
  __device__ void operator()(size_t i) const {
    y[i] = from_float<T>(power(to_float(x[i]), exponent));
  }
};

template <class T>
struct PowerBackward : Each {
  const T *dy, *x;
  float exponent;
  Out dx;
  __device__ void operator()(size_t i) const {
    if (exponent == 0) return dx.write(i, 0);
    dx.write(i, to_float(dy[i]) * (exponent * power(to_float(x[i]), exponent - 1)));
  }
};

template <class T>
T converted(double value) {
  if constexpr (std::is_same_v<T, int32_t>)
    return static_cast<int32_t>(value);
  else
    return from_float<T>(static_cast<float>(value));
}

}  // namespace

void fill(const Tensor& x, double value) {
  if (x.dtype() == DType::f64) return each(x.numel(), Fill<double>{{}, out<double>(x), value});
  dispatch_number("fill", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), Fill<T>{{}, out<T>(x), converted<T>(value)});
  });
}

void copy(const Tensor& x, const Tensor& y) {
  dispatch_number("copy", x.dtype(), [&](auto from) {
    dispatch_number("copy", y.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      constexpr int n = std::min(pack_of<From>, pack_of<To>);
      each_pack<n>(x.numel(), Copy<From, To>{{}, in<From>(x), out<To>(y)}, {x.raw(), y.raw()});
    });
  });
}

void affine(const Tensor& x, double scale, double shift, const Destination& y) {
  dispatch("affine", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each_pack<pack_of<T>>(
        x.numel(), Affine<T>{{}, in<T>(x), static_cast<float>(scale), static_cast<float>(shift), y},
        {x.raw(), y.tensor.raw()});
  });
}

void unary_forward(const Tensor& x, const Tensor& y, Unary f) {
  dispatch("unary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each_pack<pack_of<T>>(x.numel(), UnaryForward<T>{{}, in<T>(x), out<T>(y), f},
                          {x.raw(), y.raw()});
  });
}

void unary_backward(const Tensor& dy, const Tensor& x, const Tensor& y, Unary f,
                    const Destination& dx) {
  dispatch("unary", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const Tensor& kept = derivative_reads_output(f) ? y : x;
    each_pack<pack_of<T>>(dy.numel(), UnaryBackward<T>{{}, in<T>(dy), in<T>(kept), f, dx},
                          {dy.raw(), kept.raw(), dx.tensor.raw()});
  });
}

void power_forward(const Tensor& x, double exponent, const Tensor& y) {
  dispatch("pow", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), PowerForward<T>{{}, in<T>(x), static_cast<float>(exponent), out<T>(y)});
  });
}

void power_backward(const Tensor& dy, const Tensor& x, double exponent, const Destination& dx) {
  dispatch("pow", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), PowerBackward<T>{{}, in<T>(dy), in<T>(x), static_cast<float>(exponent), dx});
  });
}

}  // namespace tapeformer::kernels::cuda
