// What the forward and the backward kernel of attention share: where heads lie, which keys a query
// sees, and a block of scores.
//
// Queries are taken in blocks of 32 of one head. A block's scores are kept as [keys, 32]: each
// query is a lane, so the maxima and sums of the softmax run down the keys with no sum across a
// vector, all queries at once. The block stays in cache, and a causal one ends at its last visible
// key.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/cpu/gemm.h"
#include "core/cpu/row.h"
#include "core/cpu/scratch.h"
#include "core/cpu/simd.h"
#include "core/kernels.h"

namespace tapeformer::cpu {

/// Queries of one block, and the distance between rows of its scores.
inline constexpr int64_t attention_lanes = 32;

/// Calls f(lanes), where the usual number is known to the compiler.
template <class F>
TAPEFORMER_INLINE void with_lanes(int64_t lanes, F f) {
  if (lanes == attention_lanes)
    f(std::integral_constant<int64_t, attention_lanes>{});
  else
    f(lanes);
}

/// Head h of the rows of entry b: rows [T or S, D], `row_stride` apart.
template <class T>
struct HeadRows {
  explicit HeadRows(const Heads& heads)
      : first(heads ? heads.tensor.data<T>() + heads.offset : nullptr),
        batch_stride(heads.batch_stride),
        row_stride(heads.row_stride) {}
  T* at(int64_t b, int64_t row, int64_t h, int64_t D) const {
    return first + b * batch_stride + row * row_stride + h * D;
  }
  explicit operator bool() const { return first != nullptr; }
  T* first;
  int64_t batch_stride, row_stride;
};

/// out [D, lanes] = the transpose of rows [lanes, D]: products of untransposed small matrices are
/// the faster ones.
template <class T>
void transpose_rows(const T* rows, int64_t row_stride, int64_t lanes, int64_t D, T* out) {
  for (int64_t r = 0; r < lanes; ++r)
    for (int64_t d = 0; d < D; ++d) out[d * attention_lanes + r] = rows[r * row_stride + d];
}

/// Queries [row, row + lanes) of head h of entry b, and the keys that at least one of them sees.
/// Lane r sees the keys before visible[r], and adds slope s + bias[r] to its score of key s.
template <class T>
struct QueryBlock {
  int64_t b, h, kv_head, row, lanes, keys;
  T slope;
  alignas(64) T visible[attention_lanes], bias[attention_lanes];
};

/// The scores of one call.
template <class T>
struct Scores {
  Scores(const Heads& q, const Heads& k, const Tensor& lengths,
         const kernels::AttentionShape& shape)
      : shape(shape), q(q), k(k), lengths(optional_data<int32_t>(lengths)) {}

  int64_t blocks() const { return (shape.queries + attention_lanes - 1) / attention_lanes; }
  int64_t group() const { return shape.heads / shape.kv_heads; }

  /// How many keys query t of entry b sees: they are the first ones, and a later query sees no
  /// fewer.
  int64_t visible(int64_t b, int64_t t) const {
    int64_t keys = lengths ? std::clamp<int64_t>(lengths[b], 0, shape.keys) : shape.keys;
    if (shape.causal) keys = std::clamp<int64_t>(t + shape.keys - shape.queries + 1, 0, keys);
    return keys;
  }

  QueryBlock<T> block(int64_t b, int64_t h, int64_t index) const {
    QueryBlock<T> block;
    block.b = b, block.h = h, block.kv_head = h / group(), block.row = index * attention_lanes;
    block.lanes = std::min(attention_lanes, shape.queries - block.row);
    block.keys = visible(b, block.row + block.lanes - 1);
    block.slope = static_cast<T>(shape.alibi ? kernels::alibi_slope(h, shape.heads) : 0);
    for (int64_t r = 0; r < block.lanes; ++r) {
      block.visible[r] = static_cast<T>(visible(b, block.row + r));
      block.bias[r] = -block.slope * static_cast<T>(block.row + r + shape.keys - shape.queries);
    }
    return block;
  }

  /// p [keys, lanes] = scale k q^T. `space` holds D * attention_lanes elements.
  void compute(const QueryBlock<T>& block, T* p, T* space) const {
    const int64_t D = shape.head_size, lanes = block.lanes;
    transpose_rows(q.at(block.b, block.row, block.h, D), q.row_stride, lanes, D, space);
    gemm_serial({block.keys, lanes, D, false, false, k.row_stride, attention_lanes, attention_lanes,
                 shape.scale, 0},
                k.at(block.b, 0, block.kv_head, D), space, p);
  }

  kernels::AttentionShape shape;
  HeadRows<T> q, k;
  const int32_t* lengths;
};

// ---------------------------------------------------------------- 16-bit heads

/// Of a block of queries, everything is used many times: so 16-bit heads become float once, before
/// the kernel, and results are rounded after it.

/// [batch, rows, channels] of f32 beside the heads' tensor, or empty like them.
Heads wide_like(const Heads& heads, int64_t batch, int64_t rows, int64_t channels);
/// The same with the elements.
Heads widened(const Heads& heads, int64_t batch, int64_t rows, int64_t channels);
/// to (+)= from, rounded; `from` as wide_like() made it.
void round_heads(const Heads& from, const Heads& to);

}  // namespace tapeformer::cpu
