#include "layers/stack.h"

#include <algorithm>

namespace tapeformer {
namespace {

TransformerConfig config_for(TransformerConfig config, const StackShape& shape) {
  const auto positive = [](const char* name, int64_t value) {
    check(value > 0, "model: ", name, " must be positive, got ", value);
  };
  positive("vocabulary", config.vocabulary);
  positive("context", config.context);
  positive("layers", shape.blocks);
  // Many small allocations fill the memory before one of them is refused.
  check(shape.blocks <= 10'000, "model: layers must be at most 10000, got ", shape.blocks);
  check(config.hidden >= 0, "model: hidden must not be negative, got ", config.hidden);
  check(config.dropout >= 0 && config.dropout < 1, "model: dropout must be in [0, 1), got ",
        config.dropout);
  attention_config(config).check();
  if (shape.role != StackShape::Role::alone)
    config.causal = shape.role == StackShape::Role::decoder;
  check(
      shape.role != StackShape::Role::encoder || find_position(config.position) != Position::alibi,
      "model: the penalties of alibi know no later tokens, which an encoder sees; choose another "
      "position");
  return config;
}

}  // namespace

StackShape encoder_shape(const TransformerConfig& config) {
  return {StackShape::Role::encoder, config.encoder_layers ? config.encoder_layers : config.layers,
          config.layers};
}
StackShape decoder_shape(const TransformerConfig& config) {
  return {StackShape::Role::decoder, config.layers, encoder_shape(config).blocks};
}

Stack::Stack(const TransformerConfig& config, const StackShape& shape)
    : config_(config_for(config, shape)),
      norm_name_(norm_of(config, shape.role)),
      placement_(find_placement(config.placement)) {
  const Position position = find_position(config.position);
  if (position == Position::learned)
    learned_positions_ = std::make_unique<Embedding>(config.context, config.channels);
  if (position == Position::sinusoidal)
    sinusoidal_positions_ = sinusoidal_positions(config.context, config.channels);
  for (int64_t i = 0; i < shape.blocks; ++i)
    blocks_.push_back(std::make_unique<Block>(config_, i, shape));
  if (placement_.has_embedding_norm) embedding_norm_ = find_norm(norm_name_)(config.channels);
  if (placement_.has_final_norm) final_norm_ = find_norm(norm_name_)(config.channels);
}

Tensor Stack::add_positions(const Tensor& tokens, int64_t start, const Context& context) {
  const int64_t end = start + tokens.dim(1);
  Tensor x = tokens;
  if (learned_positions_) x = x + slice(learned_positions_->weight, 0, start, end);
  if (sinusoidal_positions_.defined())
    x = x + cast(sinusoidal_positions_.rows(start, end).to(x.device()), x.dtype());
  if (embedding_norm_) x = embedding_norm_->forward(x, NormContext(context));
  return dropout(x, config_.dropout, context.training);
}

Tensor Stack::forward(const Tensor& x, const Context& context, std::vector<KVCache>* cache,
                      const std::vector<KeysAndValues>* memory) {
  const int64_t start = cache ? (*cache)[0].length : 0, end = start + x.dim(1);
  check(end <= config_.context, "model: ", end, " tokens are more than the model's context of ",
        config_.context);
  Stream stream{add_positions(x, start, context), {}, {}};
  const auto observe = [&](size_t blocks) {
    if (!context.observe_stream) return;
    const Pause pause;
    context.observe_stream(static_cast<int64_t>(blocks), value_of(stream));
  };
  observe(0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->forward(stream, context, cache ? &(*cache)[i] : nullptr,
                        memory ? &(*memory)[i] : nullptr);
    observe(i + 1);
  }
  return placement_.finish(stream, final_norm_.get(), NormContext(context));
}

std::vector<KeysAndValues> Stack::project(const Tensor& memory, const Context& context) {
  std::vector<KeysAndValues> result;
  for (const auto& block : blocks_)
    result.push_back(block->cross_attention->project(memory, context));
  return result;
}

std::vector<KVCache> Stack::make_cache(int64_t batch, int64_t capacity) const {
  check(config_.causal, "model: one that is not causal cannot decode token by token");
  check(mixes(false) == Mixes::nothing, "model: the norm '", norm_name_,
        "' mixes time steps, so a token's output depends on more than those before it and cannot "
        "be decoded over a cache; call logits() on the whole text for each token instead");
  std::vector<KVCache> cache;
  for (const auto& block : blocks_) cache.push_back(block->attention.make_cache(batch, capacity));
  return cache;
}

Mixes Stack::mixes(bool training) const {
  Mixes most = Mixes::nothing;
  for (const auto& block : blocks_) most = std::max(most, block->mixes(training));
  for (const Norm* norm : {embedding_norm_.get(), final_norm_.get()})
    if (norm) most = std::max(most, norm->mixes(training));
  return most;
}

void Stack::visit(Visitor& visitor) {
  if (learned_positions_) visitor.module("position_embedding", *learned_positions_);
  if (embedding_norm_) visitor.module("embedding_norm", *embedding_norm_);
  for (size_t i = 0; i < blocks_.size(); ++i)
    visitor.module("blocks." + std::to_string(i), *blocks_[i]);
  if (final_norm_) visitor.module("final_norm", *final_norm_);
}

}  // namespace tapeformer
