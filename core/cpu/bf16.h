// bf16: the upper half of a float, eight bits of significand with float's whole range. A storage
// format: arithmetic and sums are float.
#pragma once

#include <bit>
#include <cstdint>

namespace tapeformer {

/// The sixteen bits of a stored number.
struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// The nearest bf16, of two that are equally near the even one; beyond the largest finite one,
/// infinity. A NaN stays one (quiet), with its sign. Without branches, so that loops vectorise.
inline bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // Half of the last kept place, less the smallest bit when that place is even: then a tie carries
  // only into an odd one.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

}  // namespace tapeformer
