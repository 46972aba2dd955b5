#include "layers/attention.h"

#include <cmath>
#include <limits>

#include "layers/token_norms.h"

namespace tapeformer {
namespace {

AttentionConfig checked(const AttentionConfig& config) {
  config.check();
  return config;
}

int64_t key_channels(const AttentionConfig& config) {
  return config.key_heads() * config.head_size();
}

std::unique_ptr<Norm> head_norm(const AttentionConfig& config) {
  return config.qk_norm ? std::make_unique<RMSNorm>(config.head_size()) : nullptr;
}

// Norms each head of x [B, T, heads D] on its own.
Tensor norm_heads(const Tensor& x, int64_t head_size, Norm& norm, const Context& context) {
  const Tensor split = reshape(x, {x.dim(0), x.dim(1), -1, head_size});
  return reshape(norm.forward(split, NormContext(context)), x.shape());
}

AttentionOptions options_of(const AttentionConfig& config, const Tensor& lengths) {
  return {.heads = config.heads,
          .kv_heads = config.key_heads(),
          .causal = config.causal,
          .alibi = config.position == Position::alibi,
          .lengths = lengths};
}

// softmax(q k^T / sqrt(D)), which attention() never has in memory: q [B,T,H D], k [B,S,K D] ->
// [B,H,T,S].
Tensor attention_weights(const AttentionConfig& config, const Tensor& q, const Tensor& k,
                         const Tensor& lengths) {
  const int64_t B = q.dim(0), T = q.dim(1), S = k.dim(1), H = config.heads, D = config.head_size();
  const int64_t repeats = H / config.key_heads();
  const Tensor queries = permute(reshape(q, {B, T, H, D}), {0, 2, 1, 3});
  const Tensor keys = reshape(k, {B, S, config.key_heads(), 1, D});
  const Tensor shared = reshape(concat(std::vector<Tensor>(repeats, keys), 3), {B, S, H, D});
  Tensor scores =
      matmul(queries, permute(shared, {0, 2, 1, 3}), false, true) / std::sqrt(double(D));
  if (lengths.defined())
    scores = masked_fill(scores, reshape(padding_mask(lengths, S, q.device()), {B, 1, 1, S}),
                         -std::numeric_limits<double>::infinity());
  return softmax(scores);
}

}  // namespace

void AttentionConfig::check() const {
  tapeformer::check(heads > 0 && channels > 0 && channels % heads == 0, "attention: ", channels,
                    " channels cannot be divided among ", heads,
                    " heads; choose a number of heads that divides the channels");
  tapeformer::check(key_heads() > 0 && heads % key_heads() == 0, "attention: ", heads,
                    " heads cannot share ", key_heads(),
                    " key-value heads; choose a number that divides the heads");
  tapeformer::check(position != Position::rotary || head_size() % 2 == 0,
                    "attention: rotary "
                    "positions need an even head size, got ",
                    channels, " channels / ", heads, " heads = ", head_size());
}

MultiHeadAttention::MultiHeadAttention(const AttentionConfig& config)
    : qkv(checked(config).channels, config.channels + 2 * key_channels(config), config.bias),
      output(config.channels, config.channels, config.bias),
      config_(config),
      query_norm_(head_norm(config)),
      key_norm_(head_norm(config)) {}

Tensor MultiHeadAttention::norm_queries_and_keys(const Tensor& qkv, const Context& context) {
  const int64_t q_end = config_.channels, k_end = q_end + key_channels(config_);
  const Tensor q = slice(qkv, -1, 0, q_end), k = slice(qkv, -1, q_end, k_end);
  const Tensor v = slice(qkv, -1, k_end, qkv.dim(-1));
  const int64_t head_size = config_.head_size();
  return concat({norm_heads(q, head_size, *query_norm_, context),
                 norm_heads(k, head_size, *key_norm_, context), v},
                -1);
}

Tensor MultiHeadAttention::forward(const Tensor& x, const Context& context, KVCache* cache) {
  Tensor packed = qkv.forward(x);
  if (config_.qk_norm) packed = norm_queries_and_keys(packed, context);
  if (config_.position == Position::rotary)
    packed = rotary(packed, config_.heads + config_.key_heads(), config_.head_size(),
                    cache ? cache->length : 0, config_.rotary_base);
  const AttentionOptions options = options_of(config_, context.lengths);
  if (!cache) return output.forward(attention(packed, options));

  const int64_t q_end = config_.channels, k_end = q_end + key_channels(config_), time = x.dim(1);
  check(cache->length + time <= cache->keys.dim(1), "attention: the cache holds ",
        cache->keys.dim(1), " tokens and cannot take ", time, " more after ", cache->length);
  kernels::slice_write(slice(packed, -1, q_end, k_end), 1, cache->length,
                       Destination{cache->keys, false});
  kernels::slice_write(slice(packed, -1, k_end, packed.dim(-1)), 1, cache->length,
                       Destination{cache->values, false});
  cache->length += time;
  return output.forward(attention_cached(slice(packed, -1, 0, q_end), cache->keys, cache->values,
                                         cache->length, options));
}

KVCache MultiHeadAttention::make_cache(int64_t batch, int64_t capacity) const {
  const Shape shape{batch, capacity, key_channels(config_)};
  return {qkv.weight.empty_like(shape), qkv.weight.empty_like(shape), 0};
}

void MultiHeadAttention::visit(Visitor& visitor) {
  visitor.module("qkv", qkv);
  if (query_norm_) visitor.module("query_norm", *query_norm_);
  if (key_norm_) visitor.module("key_norm", *key_norm_);
  visitor.module("output", output);
}

CrossAttention::CrossAttention(const AttentionConfig& config)
    : query(checked(config).channels, config.channels, config.bias),
      key_value(config.channels, 2 * key_channels(config), config.bias),
      output(config.channels, config.channels, config.bias),
      config_(config),
      query_norm_(head_norm(config)),
      key_norm_(head_norm(config)) {
  config_.causal = false;
  config_.position = Position::none;
}

KeysAndValues CrossAttention::project(const Tensor& memory, const Context& context) {
  const Tensor kv = key_value.forward(memory);
  Tensor k = slice(kv, -1, 0, key_channels(config_));
  if (config_.qk_norm) k = norm_heads(k, config_.head_size(), *key_norm_, context);
  return {k, slice(kv, -1, key_channels(config_), kv.dim(-1))};
}

Tensor CrossAttention::attend(const Tensor& x, const KeysAndValues& memory,
                              const Context& context) {
  Tensor q = query.forward(x);
  if (config_.qk_norm) q = norm_heads(q, config_.head_size(), *query_norm_, context);
  if (context.observe_cross_attention) {
    const Pause pause;
    context.observe_cross_attention(
        attention_weights(config_, q, memory.keys, context.memory_lengths));
  }
  return output.forward(
      attention(q, memory.keys, memory.values, options_of(config_, context.memory_lengths)));
}

void CrossAttention::visit(Visitor& visitor) {
  visitor.module("query", query);
  visitor.module("key_value", key_value);
  if (query_norm_) visitor.module("query_norm", *query_norm_);
  if (key_norm_) visitor.module("key_norm", *key_norm_);
  visitor.module("output", output);
}

}  // namespace tapeformer
