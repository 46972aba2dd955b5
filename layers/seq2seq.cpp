#include "layers/seq2seq.h"

#include <cmath>

#include "layers/initialization.h"

namespace tapeformer {

Seq2Seq::Seq2Seq(const TransformerConfig& config, uint64_t seed)
    : config_(config),
      tokens_(config.vocabulary, config.channels),
      source_tokens_(config.source_vocabulary
                         ? std::make_unique<Embedding>(config.source_vocabulary, config.channels)
                         : nullptr),
      encoder_(config, encoder_shape(config)),
      decoder_(config, decoder_shape(config)) {
  check(config.causal, "seq2seq: the decoder is causal and the encoder is not, always");
  check(config.source_vocabulary >= 0, "seq2seq: source_vocabulary must not be negative, got ",
        config.source_vocabulary);
  if (!config.tied) output_ = std::make_unique<Linear>(config.channels, config.vocabulary, false);
  initialize(*this, config, seed);
}

Tensor Seq2Seq::embed(const Embedding& table, const Tensor& tokens) const {
  check(tokens.rank() == 2, "seq2seq: tokens must have shape [batch, time], got ", tokens.shape());
  return table.forward(tokens) * std::sqrt(static_cast<double>(config_.channels));
}

Tensor Seq2Seq::encode(const Tensor& source, const Context& context) {
  Context own = context;
  own.lengths = context.memory_lengths;
  return encoder_.forward(embed(source_tokens_ ? *source_tokens_ : tokens_, source), own);
}

Tensor Seq2Seq::hidden(const Tensor& source, const Tensor& tokens, const Context& context) {
  check(source.dim(0) == tokens.dim(0), "seq2seq: ", source.dim(0), " sources and ", tokens.dim(0),
        " targets");
  const auto memory = decoder_.project(encode(source, context), context);
  return decoder_.forward(embed(tokens_, tokens), context, nullptr, &memory);
}

Tensor Seq2Seq::logits(const Tensor& source, const Tensor& tokens, const Context& context) {
  return linear(hidden(source, tokens, context), output_weight());
}

Tensor Seq2Seq::loss(const Tensor& source, const Tensor& tokens, const Tensor& targets,
                     const Context& context, double smoothing) {
  return linear_cross_entropy(hidden(source, tokens, context), output_weight(), targets,
                              {.smoothing = smoothing});
}

namespace {

// Rows of x [B,T,C] by number.
Tensor select_rows(const Tensor& x, const Tensor& rows) {
  return embedding(x.view({x.dim(0), -1}), rows).view({rows.numel(), x.dim(1), x.dim(2)});
}

}  // namespace

void Seq2Seq::Cache::select(const std::vector<int32_t>& rows, bool with_memory) {
  const Pause pause;
  const Tensor indices = Tensor::from(rows);
  for (KVCache& layer : tokens) {
    layer.keys = select_rows(layer.keys, indices);
    layer.values = select_rows(layer.values, indices);
  }
  if (!with_memory) return;
  for (KeysAndValues& layer : memory)
    layer = {select_rows(layer.keys, indices), select_rows(layer.values, indices)};
  std::vector<int32_t> lengths;
  for (const int32_t row : rows) lengths.push_back(memory_lengths.data<int32_t>()[row]);
  memory_lengths = Tensor::from(lengths);
}

Seq2Seq::Cache Seq2Seq::start(const Tensor& source, const Tensor& source_lengths, int64_t capacity,
                              int64_t copies) {
  const Pause pause;
  const Context context{.memory_lengths = source_lengths};
  Cache cache{{}, decoder_.project(encode(source, context), context), source_lengths};
  if (copies > 1) {
    std::vector<int32_t> rows;
    for (int64_t row = 0; row < source.dim(0) * copies; ++row)
      rows.push_back(static_cast<int32_t>(row / copies));
    cache.select(rows, true);
  }
  cache.tokens = decoder_.make_cache(source.dim(0) * copies, capacity);
  return cache;
}

Tensor Seq2Seq::decode(const Tensor& tokens, Cache& cache) {
  const Pause pause;
  const Tensor x =
      decoder_.forward(embed(tokens_, tokens), {.memory_lengths = cache.memory_lengths},
                       &cache.tokens, &cache.memory);
  const Tensor last = slice(x, 1, x.dim(1) - 1, x.dim(1));  // [B,1,C]
  return reshape(linear(last, output_weight()), {tokens.dim(0), config_.vocabulary});
}

void Seq2Seq::visit(Visitor& visitor) {
  visitor.module("token_embedding", tokens_);
  if (source_tokens_) visitor.module("source_embedding", *source_tokens_);
  visitor.module("encoder", encoder_);
  visitor.module("decoder", decoder_);
  if (output_) visitor.module("output", *output_);
}

}  // namespace tapeformer
