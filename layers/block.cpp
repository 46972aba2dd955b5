#include "layers/block.h"

#include <array>

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

const std::string& norm_of(const TransformerConfig& config, StackShape::Role role) {
  const std::string& own = role == StackShape::Role::encoder   ? config.encoder_norm
                           : role == StackShape::Role::decoder ? config.decoder_norm
                                                               : config.norm;
  return own.empty() ? config.norm : own;
}

Block::Block(const TransformerConfig& config, int64_t index, const StackShape& stack)
    : attention(attention_config(config)),
      cross_attention(stack.role == StackShape::Role::decoder
                          ? std::make_unique<CrossAttention>(attention_config(config))
                          : nullptr),
      ffn(config.channels,
          config.hidden ? config.hidden : default_hidden_size(config.channels, config.activation),
          config.activation, config.bias),
      residual_(find_placement(config.placement)
                    .make({.norm = find_norm(norm_of(config, stack.role)),
                           .channels = config.channels,
                           .sublayers = stack.sublayers(),
                           .block = index,
                           .blocks = stack.blocks,
                           .role = stack.role,
                           .partner_blocks = stack.partner_blocks})),
      dropout_(config.dropout) {}

void Block::forward(Stream& stream, const Context& context, KVCache* cache,
                    const KeysAndValues* memory) {
  const auto dropped = [&](const Tensor& x) { return dropout(x, dropout_, context.training); };
  const SubLayer attend = [&](const Tensor& x) {
    return dropped(attention.forward(x, context, cache));
  };
  const SubLayer look_up = [&](const Tensor& x) {
    return dropped(cross_attention->attend(x, *memory, context));
  };
  const SubLayer transform = [&](const Tensor& x) { return dropped(ffn.forward(x)); };
  if (cross_attention)
    residual_->forward(stream, std::array{attend, look_up, transform}, NormContext(context));
  else
    residual_->forward(stream, std::array{attend, transform}, NormContext(context));
}

void Block::visit(Visitor& visitor) {
  residual_->visit(visitor);
  visitor.module("attention", attention);
  if (cross_attention) visitor.module("cross_attention", *cross_attention);
  visitor.module("ffn", ffn);
}

}  // namespace tapeformer
