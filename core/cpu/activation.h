// The activation functions and their derivatives, once for the element-wise kernels and for the
// epilogues of linear layers. Branch-free, for use inside `#pragma omp simd` loops.
#pragma once

#include "core/cpu/simd.h"
#include "core/kernels.h"

namespace tapeformer::cpu {

struct Identity {
  template <class T>
  [[gnu::always_inline]] static T value(T x) {
    return x;
  }
  template <class T>
  [[gnu::always_inline]] static T derivative(T) {
    return T(1);
  }
};

/// max(x, 0); its derivative at 0 is 0.
struct Relu {
  template <class T>
  [[gnu::always_inline]] static T value(T x) {
    return x < T(0) ? T(0) : x;
  }  // written so that NaN stays NaN
  template <class T>
  [[gnu::always_inline]] static T derivative(T x) {
    return x > T(0) ? T(1) : T(0);
  }
};

/// x Phi(x); derivative Phi(x) + x phi(x) (Hendrycks & Gimpel 2016).
struct Gelu {
  template <class T>
  [[gnu::always_inline]] static T value(T x) {
    return x * simd::normal(x).cdf;
  }
  template <class T>
  [[gnu::always_inline]] static T derivative(T x) {
    const simd::Normal<T> normal = simd::normal(x);
    return normal.cdf + x * normal.density;
  }
};

/// x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u); derivative
/// s + x s (1 - s) 2u' with s = sigmoid(2u).
struct GeluTanh {
  template <class T>
  [[gnu::always_inline]] static T value(T x) {
    return x * simd::sigmoid(twice_u(x));
  }
  template <class T>
  [[gnu::always_inline]] static T derivative(T x) {
    const auto [s, complement] = simd::logistic(twice_u(x));
    return s + x * s * complement * (linear<T> + T(3) * cubic<T> * x * x);
  }

 private:
  template <class T>
  static constexpr T linear = T(1.59576912160573071176);  // 2 sqrt(2/pi)
  template <class T>
  static constexpr T cubic = T(1.59576912160573071176 * 0.044715);
  template <class T>
  [[gnu::always_inline]] static T twice_u(T x) {
    return x * (linear<T> + cubic<T> * x * x);
  }
};

/// x s with s = sigmoid(x); derivative s (1 + x (1 - s)) (Elfwing et al. 2018).
struct Silu {
  template <class T>
  [[gnu::always_inline]] static T value(T x) {
    return x * simd::sigmoid(x);
  }
  template <class T>
  [[gnu::always_inline]] static T derivative(T x) {
    const auto [s, complement] = simd::logistic(x);
    return s * (T(1) + x * complement);
  }
};

/// Calls f with the function object of `activation`.
template <class F>
void dispatch_activation(kernels::Activation activation, F&& f) {
  switch (activation) {
    case kernels::Activation::none:
      return f(Identity{});
    case kernels::Activation::relu:
      return f(Relu{});
    case kernels::Activation::gelu:
      return f(Gelu{});
    case kernels::Activation::gelu_tanh:
      return f(GeluTanh{});
    case kernels::Activation::silu:
      return f(Silu{});
  }
}

}  // namespace tapeformer::cpu
