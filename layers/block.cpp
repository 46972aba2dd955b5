#include "layers/block.h"

namespace tapeformer {

AttentionConfig attention_config(const TransformerConfig& config) {
  return {.channels = config.channels,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .causal = config.causal,
          .bias = config.bias,
          .qk_norm = config.qk_norm,
          .position = find_position(config.position),
          .rotary_base = config.rotary_base};
}

Block::Block(const TransformerConfig& config, int64_t index)
    : attention(attention_config(config)),
      ffn(config.channels,
          config.hidden ? config.hidden : default_hidden_size(config.channels, config.activation),
          config.activation, config.bias),
      residual_(find_placement(config.placement)
                    .make({.norm = find_norm(config.norm),
                           .channels = config.channels,
                           .sublayers = 2,
                           .block = index,
                           .blocks = config.layers})),
      dropout_(config.dropout) {}

void Block::forward(Stream& stream, const Context& context, KVCache* cache) {
  const SubLayer sublayers[] = {
      [&](const Tensor& x) {
        return dropout(attention.forward(x, context, cache), dropout_, context.training);
      },
      [&](const Tensor& x) { return dropout(ffn.forward(x), dropout_, context.training); }};
  residual_->forward(stream, sublayers, NormContext(context));
}

void Block::visit(Visitor& visitor) {
  residual_->visit(visitor);
  visitor.module("attention", attention);
  visitor.module("ffn", ffn);
}

}  // namespace tapeformer
