// Attention, backward: the weights p are computed again from the scores and lse, block by block of
// queries (Dao 2023, algorithm 2).
#include "core/cpu/attention.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

template <class T>
struct Backward {
  Scores<T> scores;
  HeadRows<T> v;
  const T *out, *lse, *dout;
  HeadRows<T> dq, dk, dv;
  bool add_dq, add_dk, add_dv;

  // With p = exp(score - lse), dp = dout v^T and delta = sum_D(dout out):
  //   ds = p (dp - delta).
  // Turns scores into p, and of dp into ds; both are zero for keys that a lane does not see.
  static void softmax(const QueryBlock<T>& block, const T* log_sum, const T* delta, T* p, T* ds) {
    with_lanes(block.lanes, [&block, log_sum, delta, p, ds](auto lanes) {
      for (int64_t s = 0; s < block.keys; ++s) {
        const T key = static_cast<T>(s), slope = block.slope;
#pragma omp simd
        for (int64_t r = 0; r < lanes; ++r) {
          const int64_t i = s * attention_lanes + r;
          const T weight = simd::exp(p[i] + (slope * key + block.bias[r]) - log_sum[r]);
          const T gradient = weight * (ds[i] - delta[r]);
          p[i] = key < block.visible[r] ? weight : T(0);
          ds[i] = key < block.visible[r] ? gradient : T(0);
        }
      }
    });
  }

  // dv += p^T dout, dq += scale ds k, dk += scale ds^T q, for one block of queries. The first block
  // of a key-value head says so: it may have to overwrite dk and dv.
  void run(const QueryBlock<T>& block, bool first) const {
    const AttentionShape& shape = scores.shape;
    const int64_t D = shape.head_size, channels = shape.heads * D;
    const auto& [b, h, kv_head, row, lanes, keys, slope, visible, bias] = block;
    T* space = thread_scratch<T>((2 * shape.keys + D) * attention_lanes);
    T *p = space + D * attention_lanes, *ds = p + shape.keys * attention_lanes;
    const int64_t at = (b * shape.queries + row) * channels + h * D;
    scores.compute(block, p, space);
    transpose_rows(dout + at, channels, lanes, D, space);
    gemm_serial({keys, lanes, D, false, false, v.row_stride, attention_lanes, attention_lanes},
                v.at(b, 0, kv_head, D), space, ds);
    alignas(64) T delta[attention_lanes];
    for (int64_t r = 0; r < lanes; ++r) {
      const T *dout_row = dout + at + r * channels, *out_row = out + at + r * channels;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < D; ++d) sum += dout_row[d] * out_row[d];
      delta[r] = sum;
    }
    softmax(block, lse + (b * shape.heads + h) * shape.queries + row, delta, p, ds);
    if (dv)
      gemm_serial({keys, D, lanes, false, false, attention_lanes, channels, dv.row_stride, 1,
                   first && !add_dv ? 0.0 : 1.0},
                  p, dout + at, dv.at(b, 0, kv_head, D));
    if (dq)
      gemm_serial({lanes, D, keys, true, false, attention_lanes, scores.k.row_stride, dq.row_stride,
                   shape.scale, add_dq ? 1.0 : 0.0},
                  ds, scores.k.at(b, 0, kv_head, D), dq.at(b, row, h, D));
    if (dk)
      gemm_serial({keys, D, lanes, false, false, attention_lanes, scores.q.row_stride,
                   dk.row_stride, shape.scale, first && !add_dk ? 0.0 : 1.0},
                  ds, scores.q.at(b, row, h, D), dk.at(b, 0, kv_head, D));
  }

  // Everything that adds to the gradients of one key-value head, in a fixed order. The last block
  // of queries comes first because it sees all keys that any of them sees.
  void kv_head(int64_t b, int64_t head) const {
    const AttentionShape& shape = scores.shape;
    const int64_t seen = shape.queries ? scores.visible(b, shape.queries - 1) : 0;
    if (!add_dk) clear(dk, b, head, seen);
    if (!add_dv) clear(dv, b, head, seen);
    const int64_t group = scores.group(), first = scores.blocks() - 1;
    for (int64_t h = head * group; h < (head + 1) * group; ++h)
      for (int64_t i = first; i >= 0; --i)
        run(scores.block(b, h, i), h == head * group && i == first);
  }

  // Keys from `begin` on, which no query sees, have zero gradient.
  void clear(const HeadRows<T>& gradient, int64_t b, int64_t head, int64_t begin) const {
    if (!gradient) return;
    const int64_t D = scores.shape.head_size;
    for (int64_t s = begin; s < scores.shape.keys; ++s)
      std::fill_n(gradient.at(b, s, head, D), D, T(0));
  }
};

Tensor as_floats(const Tensor& x) {
  const Tensor wide = Tensor::empty(x.shape());
  copy(x, wide);
  return wide;
}

// By way of f32, see attention.h.
void backward_16bit(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                    const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                    const Tensor& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  const int64_t B = shape.batch, channels = out.dim(-1), width = shape.kv_heads * shape.head_size;
  const Heads wide_dq = wide_like(dq, B, shape.queries, channels);
  const Heads wide_dk = wide_like(dk, B, shape.keys, width);
  const Heads wide_dv = wide_like(dv, B, shape.keys, width);
  attention_backward(widened(q, B, shape.queries, channels), widened(k, B, shape.keys, width),
                     widened(v, B, shape.keys, width), lengths, shape, as_floats(out), lse,
                     as_floats(dout), wide_dq, wide_dk, wide_dv);
  round_heads(wide_dq, dq);
  round_heads(wide_dk, dk);
  round_heads(wide_dv, dv);
}

}  // namespace

void attention_backward(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                        const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  if (is_16bit(out.dtype()))
    return backward_16bit(q, k, v, lengths, shape, out, lse, dout, dq, dk, dv);
  prepare_gemm();
  dispatch_wide("attention", out.dtype(), [&](auto type) {
    using T = decltype(type);
    const Backward<T> backward{{q, k, lengths, shape}, HeadRows<T>(v),  out.data<T>(),
                               lse.data<T>(),          dout.data<T>(),  HeadRows<T>(dq),
                               HeadRows<T>(dk),        HeadRows<T>(dv), dq.accumulate,
                               dk.accumulate,          dv.accumulate};
    // A key-value head is one task: so dk and dv are summed in one place and in one order, and the
    // scores are computed once for all three gradients. More than B K threads find no work.
    const int64_t B = shape.batch, K = shape.kv_heads;
    const bool parallel =
        worth_threads(B * shape.heads, shape.queries, shape.keys, shape.head_size);
    parallel_for(B * K, parallel, [&](int64_t i) { backward.kv_head(i / K, i % K); });
  });
}

}  // namespace tapeformer::kernels::cpu
