// The functions of one number and their derivatives, once for all kernels that apply them.
#pragma once

#include "core/cuda/device.cuh"

namespace tapeformer::cuda {

/// The fast division is off by 2 units in the last place at most, where an exact one is by half of
/// one, and gives 0 where the result is below 2^-126.
__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + expf(-x)); }

/// gelu_tanh(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ inline float gelu_tanh_2u(float x) {
  return 1.59576912160573f * x * (1 + 0.044715f * x * x);
}

/// f(x); see kernels::Unary.
__device__ inline float value_of(kernels::Unary f, float x) {
  using kernels::Unary;
  switch (f) {
    case Unary::exp:
      return expf(x);
    case Unary::log:
      return logf(x);
    case Unary::sqrt:
      return sqrtf(x);
    case Unary::tanh:
      return tanhf(x);
    case Unary::sigmoid:
      return sigmoid(x);
    case Unary::relu:
      return x < 0 ? 0 : x;  // NaN stays NaN
    case Unary::gelu:
      return 0.5f * x * (1 + erff(x * 0.707106781186548f));
    case Unary::gelu_tanh:
      return x * sigmoid(gelu_tanh_2u(x));
    default:
      return x * sigmoid(x);  // silu
  }
}

/// f'(x), where `kept` is x, or y = f(x) for the functions with derivative_reads_output.
///   gelu: Phi(x) + x phi(x); gelu_tanh: s + x s (1 - s) 2u'; silu: s (1 + x (1 - s)), s = sigmoid.
__device__ inline float derivative_of(kernels::Unary f, float kept) {
  using kernels::Unary;
  const float x = kept;
  switch (f) {
    case Unary::exp:
      return kept;
    case Unary::log:
      return 1 / x;
    case Unary::sqrt:
      return 0.5f / kept;
    case Unary::tanh:
      return 1 - kept * kept;
    case Unary::sigmoid:
      return kept * (1 - kept);
    case Unary::relu:
      return x > 0 ? 1 : 0;
    case Unary::gelu:
      return 0.5f * (1 + erff(x * 0.707106781186548f)) +
             x * 0.398942280401433f * expf(-0.5f * x * x);
    case Unary::gelu_tanh: {
      const float s = sigmoid(gelu_tanh_2u(x));
      return s + x * s * (1 - s) * 1.59576912160573f * (1 + 3 * 0.044715f * x * x);
    }
    default: {
      const float s = sigmoid(x);
      return s * (1 + x * (1 - s));
    }
  }
}

/// Calls f with the constant that an activation is.
template <class F>
__device__ void with_activation(kernels::Unary chosen, const F& f) {
  using enum kernels::Unary;
  with_constant<relu, gelu, gelu_tanh, silu>(chosen, f);
}
template <class F>
__device__ void with_unary(kernels::Unary chosen, const F& f) {
  using enum kernels::Unary;
  with_constant<exp, log, sqrt, tanh, sigmoid, relu, gelu, gelu_tanh, silu>(chosen, f);
}

/// slopes *= f'(kept); see derivative_of.
template <int n>
__device__ void multiply_by_derivative(kernels::Unary f, const float (&kept)[n],
                                       float (&slopes)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) slopes[k] *= derivative_of(f, kept[k]);
}

inline kernels::Unary unary_of(kernels::Activation activation) {
  using kernels::Activation, kernels::Unary;
  switch (activation) {
    case Activation::relu:
      return Unary::relu;
    case Activation::gelu:
      return Unary::gelu;
    case Activation::gelu_tanh:
      return Unary::gelu_tanh;
    default:
      return Unary::silu;
  }
}

}  // namespace tapeformer::cuda
