#include "layers/gpt.h"

#include "layers/initialization.h"

namespace tapeformer {
namespace {

const TransformerConfig& checked(const TransformerConfig& config) {
  check(config.encoder_layers == 0 && config.source_vocabulary == 0 &&
            config.encoder_norm.empty() && config.decoder_norm.empty(),
        "gpt: encoder_layers, source_vocabulary, encoder_norm and decoder_norm are an "
        "encoder-decoder's; set layers, vocabulary and norm");
  return config;
}

}  // namespace

GPT::GPT(const TransformerConfig& config, uint64_t seed)
    : config_(checked(config)),
      tokens_(config.vocabulary, config.channels),
      stack_(config, {.blocks = config.layers}) {
  if (!config.tied) output_ = std::make_unique<Linear>(config.channels, config.vocabulary, false);
  initialize(*this, config, seed);
}

Tensor GPT::run(const Tensor& tokens, const Context& context, Cache* cache) {
  check(tokens.rank() == 2, "gpt: tokens must have shape [batch, time], got ", tokens.shape());
  return stack_.forward(tokens_.forward(tokens), context, cache);
}

Tensor GPT::hidden(const Tensor& tokens, const Context& context) {
  return run(tokens, context, nullptr);
}

Tensor GPT::logits(const Tensor& tokens, const Context& context) {
  return linear(hidden(tokens, context), output_weight());
}

Tensor GPT::loss(const Tensor& tokens, const Tensor& targets, const Context& context) {
  return linear_cross_entropy(hidden(tokens, context), output_weight(), targets);
}

GPT::Cache GPT::make_cache(int64_t batch) const {
  return stack_.make_cache(batch, config_.context);
}

Tensor GPT::decode(const Tensor& tokens, Cache& cache) {
  const Pause pause;
  const Tensor x = run(tokens, {}, &cache);
  const Tensor last = slice(x, 1, x.dim(1) - 1, x.dim(1));  // [B,1,C]
  return reshape(linear(last, output_weight()), {tokens.dim(0), config_.vocabulary});
}

void GPT::visit(Visitor& visitor) {
  visitor.module("token_embedding", tokens_);
  stack_.visit(visitor);
  if (output_) visitor.module("output", *output_);
}

}  // namespace tapeformer
