#include "layers/gpt.h"

#include <algorithm>

#include "layers/initialization.h"

namespace tapeformer {
namespace {

const TransformerConfig& checked(const TransformerConfig& config) {
  const auto positive = [](const char* name, int64_t value) {
    check(value > 0, "gpt: ", name, " must be positive, got ", value);
  };
  positive("vocabulary", config.vocabulary);
  positive("context", config.context);
  positive("layers", config.layers);
  check(config.hidden >= 0, "gpt: hidden must not be negative, got ", config.hidden);
  check(config.dropout >= 0 && config.dropout < 1, "gpt: dropout must be in [0, 1), got ",
        config.dropout);
  attention_config(config).check();
  return config;
}

}  // namespace

GPT::GPT(const TransformerConfig& config, uint64_t seed)
    : config_(checked(config)),
      placement_(find_placement(config.placement)),
      tokens_(config.vocabulary, config.channels) {
  const Position position = find_position(config.position);
  if (position == Position::learned)
    learned_positions_ = std::make_unique<Embedding>(config.context, config.channels);
  if (position == Position::sinusoidal)
    sinusoidal_positions_ = sinusoidal_positions(config.context, config.channels);
  for (int64_t i = 0; i < config.layers; ++i) blocks_.push_back(std::make_unique<Block>(config, i));
  if (placement_.has_embedding_norm) embedding_norm_ = find_norm(config.norm)(config.channels);
  if (placement_.has_final_norm) final_norm_ = find_norm(config.norm)(config.channels);
  if (!config.tied) output_ = std::make_unique<Linear>(config.channels, config.vocabulary, false);
  initialize(*this, config, seed);
}

Tensor GPT::embed(const Tensor& tokens, int64_t start, const Context& context) {
  const int64_t end = start + tokens.dim(1);
  Tensor x = tokens_.forward(tokens);
  if (learned_positions_) x = x + slice(learned_positions_->weight, 0, start, end);
  if (sinusoidal_positions_.defined())
    x = x + cast(sinusoidal_positions_.rows(start, end), x.dtype());
  if (embedding_norm_) x = embedding_norm_->forward(x, NormContext(context));
  return dropout(x, config_.dropout, context.training);
}

Tensor GPT::run(const Tensor& tokens, const Context& context, Cache* cache) {
  check(tokens.rank() == 2, "gpt: tokens must have shape [batch, time], got ", tokens.shape());
  const int64_t start = cache ? (*cache)[0].length : 0, end = start + tokens.dim(1);
  check(end <= config_.context, "gpt: ", end, " tokens are more than the model's context of ",
        config_.context);
  Stream stream{embed(tokens, start, context), {}, {}};
  const auto observe = [&](size_t blocks) {
    if (!context.observe_stream) return;
    const Pause pause;
    context.observe_stream(static_cast<int64_t>(blocks), value_of(stream));
  };
  observe(0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->forward(stream, context, cache ? &(*cache)[i] : nullptr);
    observe(i + 1);
  }
  return placement_.finish(stream, final_norm_.get(), NormContext(context));
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
  check(config_.causal, "gpt: a model that is not causal cannot decode token by token");
  check(mixes(false) == Mixes::nothing, "gpt: the norm '", config_.norm,
        "' mixes time steps, so a token's output depends on more than those before it and cannot "
        "be decoded over a cache; call logits() on the whole text for each token instead");
  Cache cache;
  for (const auto& block : blocks_)
    cache.push_back(block->attention.make_cache(batch, config_.context));
  return cache;
}

Mixes GPT::mixes(bool training) const {
  Mixes most = Mixes::nothing;
  for (const auto& block : blocks_) most = std::max(most, block->mixes(training));
  for (const Norm* norm : {embedding_norm_.get(), final_norm_.get()})
    if (norm) most = std::max(most, norm->mixes(training));
  return most;
}

Tensor GPT::decode(const Tensor& tokens, Cache& cache) {
  const Pause pause;
  const Tensor x = run(tokens, {}, &cache);
  const Tensor last = slice(x, 1, x.dim(1) - 1, x.dim(1));  // [B,1,C]
  return reshape(linear(last, output_weight()), {tokens.dim(0), config_.vocabulary});
}

void GPT::visit(Visitor& visitor) {
  visitor.module("token_embedding", tokens_);
  if (learned_positions_) visitor.module("position_embedding", *learned_positions_);
  if (embedding_norm_) visitor.module("embedding_norm", *embedding_norm_);
  for (size_t i = 0; i < blocks_.size(); ++i)
    visitor.module("blocks." + std::to_string(i), *blocks_[i]);
  if (final_norm_) visitor.module("final_norm", *final_norm_);
  if (output_) visitor.module("output", *output_);
}

}  // namespace tapeformer
