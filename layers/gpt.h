// GPT: a causal Transformer language model, in the GPT-2 shape (Radford et al. 2019), the LLaMA
// shape (Touvron et al. 2023), or any between, by its configuration.
#pragma once

#include <memory>
#include <vector>

#include "layers/stack.h"

namespace tapeformer {

class GPT : public Module {
 public:
  /// Weights are drawn by `seed` (initialization.h). Throws for a configuration that makes no
  /// sense.
  explicit GPT(const TransformerConfig& config, uint64_t seed = 1);

  /// tokens (i32) [B,T], T <= context -> [B,T,C], after the final norm.
  Tensor hidden(const Tensor& tokens, const Context& context = {});
  /// -> [B,T,V]: the scores of the token that follows each.
  Tensor logits(const Tensor& tokens, const Context& context = {});
  /// Mean cross-entropy of targets [B,T]; targets of -1 do not count.
  Tensor loss(const Tensor& tokens, const Tensor& targets, const Context& context = {});

  /// Keys and values for decoding a batch of up to context tokens.
  using Cache = std::vector<KVCache>;
  Cache make_cache(int64_t batch = 1) const;
  /// Appends tokens [B,T] to the cache -> [B,V], the scores of what follows the last.
  Tensor decode(const Tensor& tokens, Cache& cache);

  /// The most that one of its norms mixes. A causal model of which that is more than nothing leaks
  /// the future.
  Mixes mixes(bool training) const { return stack_.mixes(training); }

  const TransformerConfig& config() const { return config_; }
  void visit(Visitor& visitor) override;

 private:
  Tensor run(const Tensor& tokens, const Context& context, Cache* cache);
  const Tensor& output_weight() const { return output_ ? output_->weight : tokens_.weight; }

  TransformerConfig config_;
  Embedding tokens_;
  Stack stack_;
  std::unique_ptr<Linear> output_;  // null when tied
};

}  // namespace tapeformer
