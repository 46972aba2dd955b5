// A Transformer block: attention and a feed-forward network, joined to the residual stream by
// whatever placement the configuration names.
#pragma once

#include <memory>

#include "layers/attention.h"
#include "layers/config.h"
#include "layers/ffn.h"
#include "layers/residual.h"

namespace tapeformer {

class Block : public Module {
 public:
  /// Block number `index` of config.layers.
  Block(const TransformerConfig& config, int64_t index);

  /// Takes the stream [B,T,C] through the block. With a cache, its tokens are the next T ones.
  void forward(Stream& stream, const Context& context, KVCache* cache = nullptr);
  Mixes mixes(bool training) const { return residual_->mixes(training); }
  void visit(Visitor& visitor) override;

  MultiHeadAttention attention;
  FeedForward ffn;

 private:
  std::unique_ptr<Residual> residual_;
  double dropout_;
};

AttentionConfig attention_config(const TransformerConfig& config);

}  // namespace tapeformer
