// The 16-bit types: every value, and every rounding between two neighbours. (That of bf16 stands in
// gemm16_test.cpp, beside the products that use it.)
#include "core/half.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"

using namespace tapeformer;

namespace {

// IEEE 754's binary16, by the definition: sign, 5 bits of exponent, 10 of significand.
double f16_by_definition(uint16_t bits) {
  const double sign = bits >> 15 ? -1 : 1;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace

TEST_CASE("every_f16_has_the_value_of_its_definition_and_survives_the_way_back") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const f16 half = f16::from_bits(static_cast<uint16_t>(bits));
    const double expected = f16_by_definition(half.bits);
    if (std::isnan(expected))
      wrong += !std::isnan(float(half)) || !std::isnan(float(f16(float(half))));
    else
      wrong += float(half) != expected || f16(float(half)).bits != half.bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats_round_to_the_nearest_f16_and_ties_to_the_even_one") {
  int wrong = 0;
  for (uint32_t bits = 0; bits + 1 < 0x7c00; ++bits) {
    const auto lower = static_cast<uint16_t>(bits), upper = static_cast<uint16_t>(bits + 1);
    const double middle = (f16_by_definition(lower) + f16_by_definition(upper)) / 2;
    const auto tie = static_cast<float>(middle);  // exact: one bit more than an f16
    const float below = std::nextafter(tie, 0.0f), above = std::nextafter(tie, 1e9f);
    for (const uint16_t sign : {0, 0x8000}) {
      const auto rounded = [&](float x) { return f16(sign ? -x : x).bits; };
      wrong += rounded(tie) != (sign | (bits % 2 ? upper : lower));
      wrong += rounded(below) != (sign | lower);
      wrong += rounded(above) != (sign | upper);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("what_f16_cannot_hold_becomes_infinity_or_zero") {
  CHECK(float(f16(65504)) == 65504);
  CHECK(float(f16(65519.996f)) == 65504);  // below the middle of 65,504 and 65,536
  CHECK(float(f16(65520)) == INFINITY);
  CHECK(float(f16(-1e30f)) == -INFINITY);
  CHECK(float(f16(0x1p-24f)) == 0x1p-24f);
  CHECK(f16(0x1p-25f).bits == 0);  // a tie with zero
  CHECK(f16(-0x1p-26f).bits == 0x8000);
  CHECK(std::isnan(float(f16(std::numeric_limits<float>::quiet_NaN()))));
}
