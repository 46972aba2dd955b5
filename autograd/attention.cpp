// Attention in its forms, and rotary positions, each with its backward.
#include <cmath>

#include "autograd/checks.h"
#include "autograd/common.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

using kernels::AttentionShape;

// Channels [first, first + ..) of x [B, T, W] as heads.
Heads heads_of(const Tensor& x, int64_t first = 0) {
  return {x, first, x.dim(1) * x.dim(2), x.dim(2)};
}
Heads heads_of(const Destination& d, int64_t first = 0) {
  if (!d) return {};
  Heads heads = heads_of(d.tensor, first);
  heads.accumulate = d.accumulate;
  return heads;
}

int64_t kv_heads_of(const AttentionOptions& options) {
  return options.kv_heads ? options.kv_heads : options.heads;
}

// Checks what does not depend on the form; `channels` are those of the queries.
AttentionShape attention_shape(const char* operation, const Tensor& q, int64_t channels,
                               int64_t keys, const AttentionOptions& options) {
  check_floating(operation, q);
  const int64_t heads = options.heads, kv_heads = kv_heads_of(options), batch = q.dim(0);
  check(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, operation, ": ", kv_heads,
        " key-value heads do not divide ", heads, " heads");
  check(channels % heads == 0, operation, ": ", heads, " heads do not divide ", channels,
        " channels");
  check_lengths(operation, options.lengths, batch);
  const int64_t D = channels / heads;
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(std::max<double>(D, 1));
  return {batch, q.dim(1), keys, heads, kv_heads, D, options.causal, options.alibi, scale};
}

// The same for separate q, k and v.
AttentionShape attention_shape(const char* operation, const Tensor& q, const Tensor& k,
                               const Tensor& v, const AttentionOptions& options) {
  check(q.rank() == 3 && k.rank() == 3 && v.rank() == 3, operation,
        ": needs q [B, T, H D], k and v [B, S, K D], got ", q.shape(), ", ", k.shape(), ", ",
        v.shape());
  check(k.shape() == v.shape(), operation, ": k and v differ: ", k.shape(), " and ", v.shape());
  check(k.dim(0) == q.dim(0), operation, ": batch sizes differ: q ", q.shape(), ", k ", k.shape());
  check_alike(operation, "q", q, "k", k);
  check_alike(operation, "q", q, "v", v);
  const AttentionShape shape = attention_shape(operation, q, q.dim(2), k.dim(1), options);
  const int64_t wanted = shape.kv_heads * shape.head_size;
  check(k.dim(2) == wanted, operation, ": ", shape.kv_heads, " key-value heads of ",
        shape.head_size, " channels need ", wanted, " channels, got k ", k.shape());
  return shape;
}

Tensor new_lse(const Tensor& q, const AttentionShape& shape) {
  return Tensor::empty({shape.batch, shape.heads, shape.queries}, wide(q.dtype()), q.device());
}

}  // namespace

// The formulas of the backward stand in core/kernels.h.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  const AttentionShape shape = attention_shape("attention", q, k, v, options);
  const Tensor out = q.empty_like(), lse = new_lse(q, shape), lengths = beside(q, options.lengths);
  kernels::attention_forward(heads_of(q), heads_of(k), heads_of(v), lengths, shape, out, lse);
  record("attention", {q, k, v}, {out}, [q, k, v, lengths, shape, out, lse](BackwardPass& pass) {
    write_together<3>(pass, 0, {q, k, v}, WideFrom{3}, [&](const auto& d) {
      kernels::attention_backward(heads_of(q), heads_of(k), heads_of(v), lengths, shape, out, lse,
                                  pass.gradient(), heads_of(d[0]), heads_of(d[1]), heads_of(d[2]));
    });
  });
  return out;
}

Tensor attention(const Tensor& qkv, const AttentionOptions& options) {
  const int64_t parts = options.heads + 2 * kv_heads_of(options);
  check(qkv.rank() == 3, "attention: needs q, k and v side by side, [B, T, (H + 2 K) D], got ",
        qkv.shape());
  check(parts > 0 && qkv.dim(2) % parts == 0, "attention: ", options.heads, " heads and twice ",
        kv_heads_of(options), " key-value heads do not divide ", qkv.dim(2), " channels");
  const int64_t channels = qkv.dim(2) / parts * options.heads;
  const int64_t at_k = channels, at_v = at_k + qkv.dim(2) / parts * kv_heads_of(options);
  const AttentionShape shape = attention_shape("attention", qkv, channels, qkv.dim(1), options);
  const Tensor out = qkv.empty_like({qkv.dim(0), qkv.dim(1), channels}), lse = new_lse(qkv, shape);
  const Tensor lengths = beside(qkv, options.lengths);
  kernels::attention_forward(heads_of(qkv), heads_of(qkv, at_k), heads_of(qkv, at_v), lengths,
                             shape, out, lse);
  record("attention", {qkv}, {out},
         [qkv, lengths, shape, at_k, at_v, out, lse](BackwardPass& pass) {
           const Destination d = pass.destination(0);
           kernels::attention_backward(heads_of(qkv), heads_of(qkv, at_k), heads_of(qkv, at_v),
                                       lengths, shape, out, lse, pass.gradient(), heads_of(d),
                                       heads_of(d, at_k), heads_of(d, at_v));
         });
  return out;
}

Tensor attention_cached(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, int64_t keys,
                        const AttentionOptions& options) {
  check(!recording({q, k_cache, v_cache}),
        "attention_cached: is not differentiable; call it without a Tape, or use attention()");
  AttentionShape shape = attention_shape("attention_cached", q, k_cache, v_cache, options);
  check(0 <= keys && keys <= k_cache.dim(1), "attention_cached: ", keys, " keys of a cache of ",
        k_cache.dim(1));
  shape.keys = keys;
  const Tensor out = q.empty_like();
  kernels::attention_forward(heads_of(q), heads_of(k_cache), heads_of(v_cache),
                             beside(q, options.lengths), shape, out, Tensor{});
  return out;
}

// A rotation's gradient is turned back by the same angle.
Tensor rotary(const Tensor& x, int64_t heads, int64_t head_size, int64_t start, double base) {
  check_floating("rotary", x);
  check(x.rank() == 3, "rotary: needs x [B, T, W], got ", x.shape());
  check(head_size > 0 && head_size % 2 == 0,
        "rotary: turns pairs of channels, so the head size must be even, got ", head_size);
  check(heads >= 0 && heads * head_size <= x.dim(2), "rotary: ", heads, " heads of ", head_size,
        " channels do not fit in x ", x.shape());
  const Tensor y = x.empty_like();
  kernels::rotary(x, heads, head_size, start, base, false, Destination{y});
  record("rotary", {x}, {y}, [=](BackwardPass& pass) {
    kernels::rotary(pass.gradient(), heads, head_size, start, base, true, pass.destination(0));
  });
  return y;
}

}  // namespace tapeformer
