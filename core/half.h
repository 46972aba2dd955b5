// The 16-bit floating-point numbers. Both are storage formats: reading one gives a float, writing
// rounds a float to the nearest, of two that are equally near to the even one. So a kernel written
// in terms of its element type T computes in Wide<T> and needs no other change.
//
//   bf16   the upper half of a float: its whole range, 8 bits of significand
//   f16    IEEE 754's binary16: 11 bits, from 6e-8 (2^-24) to 65,504
#pragma once

#include <bit>
#include <cstdint>

namespace tapeformer {
namespace detail {

// condition ? a : b. A choice by `?:` between values that take arithmetic becomes a branch, and
// then loops over arrays do not vectorise.
[[gnu::always_inline]] inline uint32_t choose(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

[[gnu::always_inline]] inline uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // Half of the last kept place, less the smallest bit when that place is even: then a tie carries
  // only into an odd one.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>(choose((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded));
}

[[gnu::always_inline]] inline uint16_t f16_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  // The exponent's bias goes from 127 to 15; 13 bits go, rounded as above. A carry out of the
  // significand moves on to the exponent, at the top to infinity.
  constexpr uint32_t smallest_normal = 0x38800000u, first_above_all = 0x47800000u;
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  const uint32_t normal =
      choose(rounded >= first_above_all, 0x7c00u, (rounded - 0x38000000u) >> 13);
  // Subnormal halves are the multiples of 2^-24. The floats near 0.5 are as far apart, so adding
  // 0.5 rounds to one and leaves the multiple in the low bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  const uint32_t finite = choose(magnitude < smallest_normal, subnormal, normal);
  return static_cast<uint16_t>(sign | choose(magnitude > 0x7f800000u, nan, finite));
}

[[gnu::always_inline]] inline float f16_value(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t above =
      choose(magnitude >= 0x7c00u, 0x38000000u, 0);  // infinity and NaN keep theirs
  const uint32_t normal = (magnitude << 13) + 0x38000000u + above;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t bits = choose(magnitude < 0x400u, std::bit_cast<uint32_t>(subnormal), normal);
  return std::bit_cast<float>(sign | bits);
}

}  // namespace detail

struct bf16 {
  uint16_t bits;

  bf16() = default;
  bf16(const bf16&) = default;
  bf16& operator=(const bf16&) = default;
  [[gnu::always_inline]] bf16(float x) : bits(detail::bf16_bits(x)) {}
  [[gnu::always_inline]] operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  // Beside the copy: compilers vectorise stores of numbers, not of structs.
  [[gnu::always_inline]] bf16& operator=(float x) { return bits = detail::bf16_bits(x), *this; }
  [[gnu::always_inline]] bf16& operator+=(float x) { return *this = *this + x; }
  static constexpr bf16 from_bits(uint16_t bits) { return std::bit_cast<bf16>(bits); }
};

struct f16 {
  uint16_t bits;

  f16() = default;
  f16(const f16&) = default;
  f16& operator=(const f16&) = default;
  [[gnu::always_inline]] f16(float x) : bits(detail::f16_bits(x)) {}
  [[gnu::always_inline]] operator float() const { return detail::f16_value(bits); }
  [[gnu::always_inline]] f16& operator=(float x) { return bits = detail::f16_bits(x), *this; }
  [[gnu::always_inline]] f16& operator+=(float x) { return *this = *this + x; }
  static constexpr f16 from_bits(uint16_t bits) { return std::bit_cast<f16>(bits); }
};

namespace detail {
template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<bf16> {
  using Type = float;
};
template <>
struct WideOf<f16> {
  using Type = float;
};
}  // namespace detail

/// What numbers of type T are computed and summed in: float for the 16-bit types, otherwise T.
template <class T>
using Wide = typename detail::WideOf<T>::Type;

}  // namespace tapeformer
