// A translator in training on batches of its corpus, and the matrix products of its steps.
#pragma once

#include <algorithm>
#include <vector>

#include "bench/machine.h"
#include "bench/settings.h"
#include "data/parallel.h"
#include "layers/seq2seq.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

namespace tapeformer::bench {

/// Every product of a training step of an encoder-decoder on one batch, padding counted: of C
/// channels, with V words in the target's vocabulary. A linear layer has three, see settings.h.
inline std::vector<Product> products_of(const TransformerConfig& config, const PairBatch& batch) {
  const int64_t B = batch.inputs.dim(0), S = batch.source.ids.dim(1), T = batch.inputs.dim(1);
  const int64_t C = config.channels, D = C / config.heads, heads = B * config.heads;
  const int64_t encoders = config.encoder_layers ? config.encoder_layers : config.layers;
  const int64_t decoders = config.layers;
  std::vector<Product> products;
  const auto add = [&](const Product& product) {
    const auto same = [&](const Product& p) {
      return p.m == product.m && p.n == product.n && p.k == product.k &&
             p.transpose_a == product.transpose_a && p.transpose_b == product.transpose_b &&
             p.batch == product.batch && p.share == product.share;
    };
    const auto found = std::find_if(products.begin(), products.end(), same);
    if (found == products.end())
      products.push_back(product);
    else
      found->count += product.count;
  };
  const auto add_linear = [&](const std::string& name, int64_t rows, int64_t inputs,
                              int64_t outputs, int64_t count) {
    add({name, rows, outputs, inputs, false, true, 1, count, 1});
    add({name + " dx", rows, inputs, outputs, false, false, 1, count, 1});
    add({name + " dW", outputs, inputs, rows, true, false, 1, count, 1});
  };
  // Forward q k^T and p v; backward dout v^T, ds k, ds^T q and p^T dout.
  const auto add_attention = [&](const std::string& name, int64_t queries, int64_t keys,
                                 int64_t count, double share) {
    add({name + " q k^T", queries, keys, D, false, true, heads, 2 * count, share});
    add({name + " p v", queries, D, keys, false, false, heads, 2 * count, share});
    add({name + " p^T dout", keys, D, queries, true, false, heads, 2 * count, share});
  };
  const auto add_layers = [&](const std::string& name, int64_t rows, int64_t count) {
    add_linear(name + " qkv", rows, C, 3 * C, count);
    add_linear(name + " output", rows, C, C, count);
    add_linear(name + " up", rows, C, config.hidden, count);
    add_linear(name + " down", rows, config.hidden, C, count);
  };
  add_layers("source", B * S, encoders);
  add_attention("source", S, S, encoders, 1);
  add_layers("target", B * T, decoders);
  add_attention("target", T, T, decoders, 0.5);  // causal
  add_linear("cross q", B * T, C, C, decoders);
  add_linear("cross kv", B * S, C, 2 * C, decoders);
  add_linear("cross output", B * T, C, C, decoders);
  add_attention("cross", T, S, decoders, 1);
  add_linear("logits", B * T, C, config.vocabulary, 1);
  return products;
}

/// A translator with its optimizer.
class Translating {
 public:
  Translating(const TransformerConfig& config, const AdamWOptions& adamw, double clip,
              double smoothing)
      : model_(config),
        parameters_(model_),
        optimizer_(parameters_, adamw),
        clip_(clip),
        smoothing_(smoothing) {}

  /// The milliseconds of one update on a batch.
  double step(const PairBatch& batch, double lr) {
    const MicroBatch part{
        batch.tokens, [&] {
          return model_.loss(
              batch.source.ids, batch.inputs, batch.targets,
              {.training = true, .lengths = batch.lengths, .memory_lengths = batch.source.lengths},
              smoothing_);
        }};
    return milliseconds(
        [&] { training_step(model_, parameters_, optimizer_, {part}, steps_++, lr, clip_, 1); });
  }

  Seq2Seq& model() { return model_; }
  int64_t parameters() const { return parameters_.size(); }

 private:
  Seq2Seq model_;
  Parameters parameters_;
  AdamW optimizer_;
  double clip_, smoothing_;
  int64_t steps_ = 0;
};

}  // namespace tapeformer::bench
