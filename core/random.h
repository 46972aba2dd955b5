// Random numbers from a counter: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3", table 2). A number is a pure function of (seed, purpose, step, operation,
// index), so it is the same on every device and thread, nothing has to be saved but the step, and
// streams of different purpose never disturb each other: evaluating more often changes no
// training run.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace tapeformer {

using Philox4 = std::array<uint32_t, 4>;

/// Ten rounds of Philox over a 128-bit counter and a 64-bit key.
constexpr Philox4 philox4x32(Philox4 counter, uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// What a stream of random numbers is for.
enum class Purpose : uint32_t { initialization, dropout, batches, evaluation, sampling, stories };

/// Names one stream. `operation` numbers the users of a stream within a step: the dropouts of a
/// forward pass, the parameters of a model.
struct RandomKey {
  uint64_t seed = 0;
  Purpose purpose = Purpose::initialization;
  uint32_t step = 0;
  uint32_t operation = 0;

  /// Four words, for elements 4 * block ... 4 * block + 3 of the stream.
  constexpr Philox4 block(uint32_t block) const {
    return philox4x32({block, operation, step, static_cast<uint32_t>(purpose)}, seed);
  }
};

/// In [0, 1), a multiple of 2^-24: exact in f32.
constexpr float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Two independent standard normals from two words (Box & Muller 1958).
inline std::array<double, 2> normals(uint32_t word0, uint32_t word1) {
  const double radius = std::sqrt(-2.0 * std::log((word0 + 0.5) * 0x1p-32));
  const double angle = 2.0 * 3.14159265358979323846 * (word1 * 0x1p-32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Reads a stream one number after the other, where the order of drawing is natural (sampling,
/// shuffling, generating text).
class Generator {
 public:
  explicit Generator(RandomKey key) : key_(key) {}
  uint32_t next() {
    if (used_ == 4) {
      words_ = key_.block(block_++);
      used_ = 0;
    }
    return words_[used_++];
  }
  /// In [0, 1), 53 random bits.
  double uniform() {
    const uint64_t high = next(), low = next();
    return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
  }
  /// In [0, n), each equally likely (Lemire 2019, with rejection). n > 0.
  uint32_t below(uint32_t n) {
    uint64_t product = uint64_t{next()} * n;
    if (static_cast<uint32_t>(product) < n)
      for (const uint32_t threshold = -n % n; static_cast<uint32_t>(product) < threshold;)
        product = uint64_t{next()} * n;
    return static_cast<uint32_t>(product >> 32);
  }

 private:
  RandomKey key_;
  Philox4 words_{};
  uint32_t block_ = 0;
  int used_ = 4;
};

}  // namespace tapeformer
