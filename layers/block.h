// A Transformer block: attention and a feed-forward network, in a decoder with cross-attention
// between them, joined to the residual stream by whatever placement the configuration names.
#pragma once

#include <memory>

#include "layers/attention.h"
#include "layers/config.h"
#include "layers/ffn.h"
#include "layers/residual.h"

namespace tapeformer {

class Block : public Module {
 public:
  /// Block number `index` of a stack.
  Block(const TransformerConfig& config, int64_t index, const StackShape& stack);
  /// Of config.layers blocks on their own.
  Block(const TransformerConfig& config, int64_t index)
      : Block(config, index, {.blocks = config.layers}) {}

  /// Takes the stream [B,T,C] through the block. With a cache, its tokens are the next T ones. A
  /// decoder's block needs the memory.
  void forward(Stream& stream, const Context& context, KVCache* cache = nullptr,
               const KeysAndValues* memory = nullptr);
  Mixes mixes(bool training) const { return residual_->mixes(training); }
  void visit(Visitor& visitor) override;

  MultiHeadAttention attention;
  std::unique_ptr<CrossAttention> cross_attention;  // null but in a decoder
  FeedForward ffn;

 private:
  std::unique_ptr<Residual> residual_;
  double dropout_;
};

AttentionConfig attention_config(const TransformerConfig& config);
/// The name of the norm of a stack.
const std::string& norm_of(const TransformerConfig& config, StackShape::Role role);

}  // namespace tapeformer
