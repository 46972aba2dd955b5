// Element-wise kernels of one tensor: filling, copying, functions and their gradients.
#include "core/cpu/activation.h"
#include "core/cpu/loops.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

void fill(const Tensor& x, double value) {
  dispatch_number("fill", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T constant = static_cast<T>(value);
    assign_each<T>(x, 1, [=](int64_t) { return constant; });
  });
}

void copy(const Tensor& x, const Tensor& y) {
  dispatch_number("copy", x.dtype(), [&](auto from) {
    dispatch_number("copy", y.dtype(), [&](auto to) {
      using To = decltype(to);
      const auto* px = x.data<decltype(from)>();
      assign_each<To>(y, 1, [=](int64_t i) { return static_cast<To>(px[i]); });
    });
  });
}

void affine(const Tensor& x, double scale, double shift, const Destination& y) {
  dispatch_floating("affine", x.dtype(), [&](auto from) {
    using From = decltype(from);
    const From* px = x.data<From>();
    dispatch_floating("affine", y.tensor.dtype(), [&](auto to) {
      using To = decltype(to);
      using W = std::common_type_t<Wide<From>, Wide<To>>;
      const W a = static_cast<W>(scale), b = static_cast<W>(shift);
      assign_each<To>(y, 1, [=](int64_t i) { return static_cast<To>(a * px[i] + b); });
    });
  });
}

namespace {

// Functions whose derivative is written in terms of their value y, where Activation's are of x.
struct Exp {
  template <class T>
  static T value(T x) {
    return simd::exp(x);
  }
  template <class T>
  static T derivative(T y) {
    return y;
  }
};
struct Sqrt {
  template <class T>
  static T value(T x) {
    return std::sqrt(x);
  }
  template <class T>
  static T derivative(T y) {
    return T(0.5) / y;
  }
};
struct Tanh {
  template <class T>
  static T value(T x) {
    return simd::tanh(x);
  }
  template <class T>
  static T derivative(T y) {
    return T(1) - y * y;
  }
};
struct Sigmoid {
  template <class T>
  static T value(T x) {
    return simd::sigmoid(x);
  }
  template <class T>
  static T derivative(T y) {
    return y * (T(1) - y);
  }
};
struct Log {  // in terms of x
  template <class T>
  static T value(T x) {
    return simd::log(x);
  }
  template <class T>
  static T derivative(T x) {
    return T(1) / x;
  }
};

template <class F>
void dispatch_unary(Unary f, F&& call) {
  switch (f) {
    case Unary::exp:
      return call(Exp{});
    case Unary::log:
      return call(Log{});
    case Unary::sqrt:
      return call(Sqrt{});
    case Unary::tanh:
      return call(Tanh{});
    case Unary::sigmoid:
      return call(Sigmoid{});
    case Unary::relu:
      return call(Relu{});
    case Unary::gelu:
      return call(Gelu{});
    case Unary::gelu_tanh:
      return call(GeluTanh{});
    case Unary::silu:
      return call(Silu{});
  }
}

// The cost of one transcendental function, in additions.
constexpr int64_t function_cost = 8;

// Calls call(power) with power(x) = x^exponent; the exponents that occur in formulas vectorise.
template <class T, class F>
void dispatch_power(double exponent, F&& call) {
  if (exponent == 0) return call([](T) { return T(1); });
  if (exponent == 1) return call([](T x) { return x; });
  if (exponent == 2) return call([](T x) { return x * x; });
  if (exponent == 3) return call([](T x) { return x * x * x; });
  if (exponent == -1) return call([](T x) { return T(1) / x; });
  if (exponent == 0.5) return call([](T x) { return std::sqrt(x); });
  if (exponent == -0.5) return call([](T x) { return T(1) / std::sqrt(x); });
  if (exponent == -2) return call([](T x) { return T(1) / (x * x); });
  call([e = static_cast<T>(exponent)](T x) { return std::pow(x, e); });
}

}  // namespace

void unary_forward(const Tensor& x, const Tensor& y, Unary f) {
  dispatch_floating("unary_forward", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const T* px = x.data<T>();
    dispatch_unary(f, [&](auto function) {
      assign_each<T>(y, function_cost, [=](int64_t i) { return function.value(W(px[i])); });
    });
  });
}

void unary_backward(const Tensor& dy, const Tensor& x, const Tensor& y, Unary f,
                    const Destination& dx) {
  dispatch_floating("unary_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const T* pdy = dy.data<T>();
    const T* kept = (derivative_reads_output(f) ? y : x).template data<T>();
    dispatch_unary(f, [&](auto function) {
      assign_each<T>(dx, function_cost,
                     [=](int64_t i) { return pdy[i] * function.derivative(W(kept[i])); });
    });
  });
}

void power_forward(const Tensor& x, double exponent, const Tensor& y) {
  dispatch_wide("pow", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* px = x.data<T>();
    dispatch_power<T>(exponent, [&](auto power) {
      assign_each<T>(y, function_cost, [=](int64_t i) { return power(px[i]); });
    });
  });
}

void power_backward(const Tensor& dy, const Tensor& x, double exponent, const Destination& dx) {
  dispatch_wide("pow", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *pdy = dy.data<T>(), *px = x.data<T>();
    const T factor = static_cast<T>(exponent);
    if (factor == T(0)) return assign_each<T>(dx, 1, [](int64_t) { return T(0); });
    dispatch_power<T>(exponent - 1, [&](auto power) {
      assign_each<T>(dx, function_cost,
                     [=](int64_t i) { return pdy[i] * (factor * power(px[i])); });
    });
  });
}

}  // namespace tapeformer::kernels::cpu
