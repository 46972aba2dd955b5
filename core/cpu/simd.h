// Elementary functions that compilers vectorise: plain branch-free scalar code for float, to be
// called inside `#pragma omp simd` loops, on any processor. The double overloads are libm's.
//
// Errors, measured against double in tests/simd_test.cpp (1 ulp is 6e-8 to 1.2e-7 relative):
//   exp 2 ulp, log 2 ulp, tanh 4 ulp, sigmoid 4 ulp, normal 2e-7 absolute.
// Infinities, zeros, denormals and NaN give what libm gives.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// A loop that calls one of these is vectorised only when every call is inlined.
#define TAPEFORMER_INLINE [[gnu::always_inline]] inline

namespace tapeformer::simd {
namespace detail {

// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite 1980): ln 2 in two parts, the first so short
// that n times it is exact. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
struct Reduced {
  int32_t n;
  float r;
};
TAPEFORMER_INLINE Reduced reduce(float x) {
  constexpr float shift = 12582912.0f;
  const float shifted = x * 1.44269504f + shift;
  const float n = shifted - shift;
  const uint32_t low = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(shift);
  return {static_cast<int32_t>(low), (x - n * 0.693359375f) + n * 2.12194442e-4f};
}

// e^r - 1 for |r| <= ln 2 / 2: a minimax polynomial, relative error 1.3e-8.
TAPEFORMER_INLINE float expm1_reduced(float r) {
  float p = 1.39464345e-3f;
  p = p * r + 8.36658757e-3f;
  p = p * r + 4.16662805e-2f;
  p = p * r + 1.66665435e-1f;
  p = p * r + 0.5f;
  return p * (r * r) + r;
}

// 2^n for -126 <= n <= 127.
TAPEFORMER_INLINE float power_of_two(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// e^x - 1 for |x| <= 80, accurate near 0 too: 2^n (e^r - 1) + (2^n - 1).
TAPEFORMER_INLINE float expm1(float x) {
  const Reduced reduced = reduce(x);
  const float scale = power_of_two(reduced.n);
  return scale * expm1_reduced(reduced.r) + (scale - 1.0f);
}

}  // namespace detail

TAPEFORMER_INLINE float exp(float x) {
  // Beyond these bounds the result is 0 or infinity anyway. A NaN passes both comparisons.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const detail::Reduced reduced = detail::reduce(x);
  // 2^n in two factors: alone it would not reach denormal results and infinity.
  const int32_t half = reduced.n >> 1;
  const float e = detail::expm1_reduced(reduced.r) + 1.0f;
  return e * detail::power_of_two(half) * detail::power_of_two(reduced.n - half);
}

TAPEFORMER_INLINE float log(float x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool denormal = x < std::numeric_limits<float>::min();
  const float normal = denormal ? x * 0x1p23f : x;
  // normal = 2^e m with m in [sqrt(1/2), sqrt(2)); f = m - 1.
  constexpr uint32_t sqrt_half = 0x3f3504f3;
  const uint32_t bits = std::bit_cast<uint32_t>(normal) - sqrt_half;
  const float f = std::bit_cast<float>((bits & 0x7fffffu) + sqrt_half) - 1.0f;
  const float e = static_cast<float>(static_cast<int32_t>(bits) >> 23) - (denormal ? 23.0f : 0.0f);
  // log(1 + f) = f - f^2 / 2 + f^3 P(f): minimax, relative error 5.8e-9.
  float p = -7.63455629e-2f;
  p = p * f + 1.27616063e-1f;
  p = p * f - 1.31601721e-1f;
  p = p * f + 1.42017543e-1f;
  p = p * f - 1.66233584e-1f;
  p = p * f + 2.00012267e-1f;
  p = p * f - 2.50008196e-1f;
  p = p * f + 3.33333313e-1f;
  const float square = f * f;
  const float tail = p * (f * square) - 0.5f * square - e * 2.12194442e-4f;
  const float result = e * 0.693359375f + (f + tail);
  const float at_edge = x == 0.0f ? -infinity : std::numeric_limits<float>::quiet_NaN();
  return x > 0.0f ? (x == infinity ? infinity : result) : at_edge;
}

/// (e^2x - 1) / (e^2x + 1), which keeps its relative accuracy near 0.
TAPEFORMER_INLINE float tanh(float x) {
  const float magnitude = std::fabs(x);
  const float e = detail::expm1(2.0f * (magnitude > 9.5f ? 9.5f : magnitude));
  return std::copysign(e / (e + 2.0f), x);
}

/// s = 1 / (1 + e^-x) and 1 - s, each without cancellation.
template <class T>
struct Logistic {
  T value, complement;
};
TAPEFORMER_INLINE Logistic<float> logistic(float x) {
  const float e = exp(-std::fabs(x));
  const float upper = 1.0f / (1.0f + e), lower = e * upper;
  return {x < 0.0f ? lower : upper, x < 0.0f ? upper : lower};
}
TAPEFORMER_INLINE float sigmoid(float x) { return logistic(x).value; }

/// The standard normal distribution at x: Phi(x), its distribution function, and phi(x), its
/// density.
template <class T>
struct Normal {
  T cdf, density;
};

/// Phi(-|x|) = phi(x) R(|x|), with R smooth enough (Mills' ratio) for one polynomial in
/// t = 1 / (1 + 0.3 |x|), as in Abramowitz & Stegun 7.1.26: one exp gives both values. Minimax
/// under the weight exp(-x^2 / 4), so that the lower tail keeps some relative accuracy too.
TAPEFORMER_INLINE Normal<float> normal(float x) {
  const float bell = exp(-0.5f * x * x);
  const float t = 1.0f / (1.0f + 0.3f * std::fabs(x));
  float p = 3.31781693e-2f;
  p = p * t - 2.24527463e-1f;
  p = p * t + 4.82279032e-1f;
  p = p * t - 2.67046779e-1f;
  p = p * t + 2.73155570e-1f;
  p = p * t + 7.90868029e-2f;
  p = p * t + 1.23874664e-1f;
  const float tail = bell * (p * t);
  return {x < 0.0f ? tail : 1.0f - tail, 0.398942280f * bell};
}

inline double exp(double x) { return std::exp(x); }
inline double log(double x) { return std::log(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline Logistic<double> logistic(double x) { return {sigmoid(x), sigmoid(-x)}; }
inline Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752440),
          0.39894228040143267794 * std::exp(-0.5 * x * x)};
}

}  // namespace tapeformer::simd
