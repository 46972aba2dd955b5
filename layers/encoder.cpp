#include "layers/encoder.h"

#include "layers/initialization.h"

namespace tapeformer {

namespace {

TransformerConfig seeing_all(TransformerConfig config) {
  config.causal = false;
  return config;
}

}  // namespace

Encoder::Encoder(const TransformerConfig& config, uint64_t seed)
    : tokens_(config.vocabulary, config.channels),
      stack_(seeing_all(config), {.blocks = config.layers}) {
  initialize(*this, config, seed);
}

Tensor Encoder::forward(const Tensor& tokens, const Context& context) {
  check(tokens.rank() == 2, "encoder: tokens must have shape [batch, time], got ", tokens.shape());
  return stack_.forward(tokens_.forward(tokens), context);
}

void Encoder::visit(Visitor& visitor) {
  visitor.module("token_embedding", tokens_);
  stack_.visit(visitor);
}

}  // namespace tapeformer
