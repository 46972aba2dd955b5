// Attention, forward: block by block of queries, scores and their softmax in cache.
#include "core/cpu/attention.h"

#include <algorithm>
#include <cmath>

namespace tapeformer::kernels {

double alibi_slope(int64_t head, int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  if (head < power) return std::exp2(-8.0 * (head + 1) / power);
  return std::exp2(-8.0 * (2 * (head - power) + 1) / (2 * power));
}

namespace cpu {
namespace {

using namespace tapeformer::cpu;

template <class T>
struct Forward {
  Scores<T> scores;
  HeadRows<T> v;
  T *out, *lse;  // [B, T, H, D]; [B, H, T] or null

  // Turns scores into p = exp(score - largest), zero for keys that a lane does not see. `inverse`
  // is what is left to multiply by, 1 / sum p.
  static void softmax(const QueryBlock<T>& block, T* p, T* log_sum, T* inverse) {
    with_lanes(block.lanes, [&block, p, log_sum, inverse](auto lanes) {
      alignas(64) T largest[attention_lanes], sum[attention_lanes];
      std::fill(largest, largest + lanes, -std::numeric_limits<T>::infinity());
      std::fill(sum, sum + lanes, T(0));
      for (int64_t s = 0; s < block.keys; ++s) {
        const T key = static_cast<T>(s), slope = block.slope;
#pragma omp simd
        for (int64_t r = 0; r < lanes; ++r) {
          const T score = p[s * attention_lanes + r] + (slope * key + block.bias[r]);
          const T larger = score > largest[r] ? score : largest[r];
          largest[r] = key < block.visible[r] ? larger : largest[r];
        }
      }
      for (int64_t s = 0; s < block.keys; ++s) {
        const T key = static_cast<T>(s), slope = block.slope;
#pragma omp simd
        for (int64_t r = 0; r < lanes; ++r) {
          const T score = p[s * attention_lanes + r] + (slope * key + block.bias[r]);
          const T weight = simd::exp(score - largest[r]);
          const T seen = key < block.visible[r] ? weight : T(0);
          p[s * attention_lanes + r] = seen;
          sum[r] += seen;
        }
      }
#pragma omp simd
      for (int64_t r = 0; r < lanes; ++r) {
        log_sum[r] = largest[r] + simd::log(sum[r]);
        inverse[r] = block.visible[r] > T(0) ? 1 / sum[r] : T(0);
      }
    });
  }

  void run(int64_t b, int64_t h, int64_t index) const {
    const AttentionShape& shape = scores.shape;
    const int64_t D = shape.head_size, channels = shape.heads * D;
    const QueryBlock<T> block = scores.block(b, h, index);
    T* space = thread_scratch<T>((shape.keys + D) * attention_lanes);
    T* p = space + D * attention_lanes;
    alignas(64) T log_sum[attention_lanes], inverse[attention_lanes];
    scores.compute(block, p, space);
    softmax(block, p, log_sum, inverse);
    if (lse)
      std::copy_n(log_sum, block.lanes, lse + (b * shape.heads + h) * shape.queries + block.row);
    T* o = out + (b * shape.queries + block.row) * channels + h * D;
    gemm_serial({block.lanes, D, block.keys, true, false, attention_lanes, v.row_stride, channels},
                p, v.at(b, 0, block.kv_head, D), o);
    for (int64_t r = 0; r < block.lanes; ++r, o += channels)
      row_write(D, o, false, [=, scale = inverse[r]](int64_t d) { return o[d] * scale; });
  }
};

}  // namespace

void attention_forward(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                       const AttentionShape& shape, const Tensor& out, const Tensor& lse) {
  if (is_16bit(out.dtype())) {
    const int64_t B = shape.batch, width = shape.kv_heads * shape.head_size;
    const Tensor wide_out = Tensor::empty(out.shape());
    attention_forward(widened(q, B, shape.queries, out.dim(-1)), widened(k, B, shape.keys, width),
                      widened(v, B, shape.keys, width), lengths, shape, wide_out, lse);
    return copy(wide_out, out);
  }
  prepare_gemm();
  dispatch_wide("attention", out.dtype(), [&](auto type) {
    using T = decltype(type);
    const Forward<T> forward{
        {q, k, lengths, shape}, HeadRows<T>(v), out.data<T>(), optional_data<T>(lse)};
    const int64_t B = shape.batch, H = shape.heads, blocks = forward.scores.blocks();
    const bool parallel = worth_threads(B * H, shape.queries, shape.keys, shape.head_size);
    parallel_for(B * H * blocks, parallel, [&](int64_t i) {
      const int64_t block = i % blocks, h = i / blocks % H, b = i / blocks / H;
      forward.run(b, h, block);
    });
  });
}

}  // namespace cpu
}  // namespace tapeformer::kernels
