// Random tensors and dropout, from Philox: a number depends on its key and index alone, so neither
// threads nor pieces matter.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/cpu/loops.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

namespace {

// Words are made for this many blocks at a time: the vector units then work on all of them at once.
constexpr int64_t batch_blocks = 16, batch_words = 4 * batch_blocks;
using Words = std::array<uint32_t, batch_words>;

// Words first ... first + batch_words of the stream; `first` is a multiple of 4. These are
// philox4x32's rounds, with the blocks in the innermost loop.
Words words_from(const RandomKey& key, int64_t first) {
  std::array<uint32_t, batch_blocks> c0, c1, c2, c3;
  for (int64_t b = 0; b < batch_blocks; ++b) {
    c0[b] = static_cast<uint32_t>(first / 4 + b);
    c1[b] = key.operation, c2[b] = key.step, c3[b] = static_cast<uint32_t>(key.purpose);
  }
  auto key0 = static_cast<uint32_t>(key.seed), key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t b = 0; b < batch_blocks; ++b) {
      const uint64_t product0 = uint64_t{0xD2511F53} * c0[b];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * c2[b];
      c0[b] = static_cast<uint32_t>(product1 >> 32) ^ c1[b] ^ key0;
      c1[b] = static_cast<uint32_t>(product1);
      c2[b] = static_cast<uint32_t>(product0 >> 32) ^ c3[b] ^ key1;
      c3[b] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  Words words;
  for (int64_t b = 0; b < batch_blocks; ++b) {
    words[4 * b] = c0[b], words[4 * b + 1] = c1[b];
    words[4 * b + 2] = c2[b], words[4 * b + 3] = c3[b];
  }
  return words;
}

// Calls f(first, count, words) for batches of elements [first, first + count) of n.
template <class F>
void for_each_batch(int64_t n, const RandomKey& key, const F& f) {
  parallel_pieces(n, piece, 8, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += batch_words)
      f(first, std::min(batch_words, end - first), words_from(key, first));
  });
}

}  // namespace

void dropout(const Tensor& x, double p, RandomKey key, const Destination& y) {
  dispatch_floating("dropout", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* px = x.data<T>();
    T* py = y.tensor.data<T>();
    using W = Wide<T>;
    const W scale = static_cast<W>(1 / (1 - p));
    const float threshold = static_cast<float>(p);
    for_each_batch(
        x.numel(), key,
        [=, accumulate = y.accumulate](int64_t first, int64_t count, const Words& words) {
          const T* in = px + first;
          assign_range(0, count, py + first, accumulate, [&words, in, scale, threshold](int64_t i) {
            const W kept = in[i] * scale;  // read in any case, so that no branch is needed
            return uniform(words[i]) >= threshold ? kept : W(0);
          });
        });
  });
}

void fill_normal(const Tensor& x, double mean, double deviation, RandomKey key) {
  dispatch_floating("fill_normal", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* px = x.data<T>();
    for_each_batch(x.numel(), key, [=](int64_t first, int64_t count, const Words& words) {
      for (int64_t i = 0; i < count; i += 2) {
        const auto pair = normals(words[i], words[i + 1]);
        px[first + i] = static_cast<T>(mean + deviation * pair[0]);
        if (i + 1 < count) px[first + i + 1] = static_cast<T>(mean + deviation * pair[1]);
      }
    });
  });
}

namespace {

// The largest T below `end`: rounding must not reach `end` itself.
template <class T>
Wide<T> largest_below(Wide<T> end) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return std::nextafter(end, -std::numeric_limits<T>::infinity());
  } else {
    T x = end;
    while (x >= end) {  // once or twice: the bits count up from zero, on both of its sides
      if (x.bits << 1 == 0) x.bits = 0x8000;
      x.bits += x.bits >> 15 ? 1 : -1;
    }
    return x;
  }
}

}  // namespace

void fill_uniform(const Tensor& x, double low, double high, RandomKey key) {
  dispatch_floating("fill_uniform", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* px = x.data<T>();
    using W = Wide<T>;
    const W a = static_cast<W>(low), width = static_cast<W>(high - low);
    const W last = largest_below<T>(static_cast<W>(high));
    for_each_batch(x.numel(), key, [=](int64_t first, int64_t count, const Words& words) {
      assign_range(0, count, px + first, false, [&words, a, last, width](int64_t i) {
        return std::min(a + width * static_cast<W>(uniform(words[i])), last);
      });
    });
  });
}

}  // namespace tapeformer::kernels::cpu
