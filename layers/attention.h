// Multi-head attention (Vaswani et al. 2017, section 3.2), over itself or over a memory.
#pragma once

#include <memory>

#include "layers/context.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/position.h"

namespace tapeformer {

struct AttentionConfig {
  int64_t channels = 0;
  int64_t heads = 1;     ///< divides channels
  int64_t kv_heads = 0;  ///< divides heads (Ainslie et al. 2023); 0: as many as heads
  bool causal = true;
  bool bias = true;
  bool qk_norm = false;  ///< RMS norm of each head's queries and keys (after Henry et al. 2020)
  Position position = Position::none;  ///< rotary and alibi matter here
  double rotary_base = 10000;

  int64_t head_size() const { return channels / heads; }
  int64_t key_heads() const { return kv_heads ? kv_heads : heads; }
  /// Throws unless heads divide channels and key-value heads divide heads.
  void check() const;
};

/// The keys and values of the tokens seen so far, of one layer, for decoding.
struct KVCache {
  Tensor keys, values;  // [B, capacity, K D]
  int64_t length = 0;   // tokens that they hold
};

/// Of a memory, for one layer.
struct KeysAndValues {
  Tensor keys, values;  // [B, S, K D]
};

class MultiHeadAttention : public Module {
 public:
  explicit MultiHeadAttention(const AttentionConfig& config);

  /// x [B,T,C] -> [B,T,C]. With a cache, x are the next T tokens: their keys and values are
  /// appended, and they attend to all that the cache then holds.
  Tensor forward(const Tensor& x, const Context& context, KVCache* cache = nullptr);
  KVCache make_cache(int64_t batch, int64_t capacity) const;
  void visit(Visitor& visitor) override;

  Linear qkv;     // [(H + 2 K) D, C]: queries, keys, values
  Linear output;  // [C, H D]

 private:
  Tensor norm_queries_and_keys(const Tensor& qkv, const Context& context);
  AttentionConfig config_;
  std::unique_ptr<Norm> query_norm_, key_norm_;
};

/// Queries from x, keys and values from a memory: the decoder's second sub-layer. Positions do not
/// act here; context.memory_lengths are the memory's.
class CrossAttention : public Module {
 public:
  explicit CrossAttention(const AttentionConfig& config);

  /// x [B,T,C], memory [B,S,C] -> [B,T,C]
  Tensor forward(const Tensor& x, const Tensor& memory, const Context& context) {
    return attend(x, project(memory, context), context);
  }
  /// The two steps of it. When decoding, the first is done once.
  KeysAndValues project(const Tensor& memory, const Context& context);
  Tensor attend(const Tensor& x, const KeysAndValues& memory, const Context& context);
  void visit(Visitor& visitor) override;

  Linear query;      // [H D, C]
  Linear key_value;  // [2 K D, C]
  Linear output;     // [C, H D]

 private:
  AttentionConfig config_;
  std::unique_ptr<Norm> query_norm_, key_norm_;
};

}  // namespace tapeformer
