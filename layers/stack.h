// A stack of blocks with what stands around it: positions and the embedding's norm before it, the
// final norm behind it. GPT is one, an encoder-decoder two.
#pragma once

#include <memory>
#include <vector>

#include "layers/block.h"
#include "layers/embedding.h"

namespace tapeformer {

class Stack : public Module {
 public:
  /// An encoder's attention sees all times, a decoder's its own and earlier ones, that of a stack
  /// on its own what config.causal says. Throws for a configuration that makes no sense.
  Stack(const TransformerConfig& config, const StackShape& shape);

  /// x [B,T,C], the embedded tokens -> [B,T,C]. With a cache, x are the next T tokens. A decoder
  /// needs the memory, from project().
  Tensor forward(const Tensor& x, const Context& context, std::vector<KVCache>* cache = nullptr,
                 const std::vector<KeysAndValues>* memory = nullptr);
  /// Of a decoder: memory [B,S,C] -> its keys and values for each block.
  std::vector<KeysAndValues> project(const Tensor& memory, const Context& context);

  /// Keys and values for decoding a batch of up to `capacity` tokens. Throws for a stack that
  /// cannot decode token by token.
  std::vector<KVCache> make_cache(int64_t batch, int64_t capacity) const;
  /// The most that one of its norms mixes.
  Mixes mixes(bool training) const;
  void visit(Visitor& visitor) override;

 private:
  Tensor add_positions(const Tensor& x, int64_t start, const Context& context);

  TransformerConfig config_;
  std::string norm_name_;
  Placement placement_;
  std::unique_ptr<Embedding> learned_positions_;
  Tensor sinusoidal_positions_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> embedding_norm_, final_norm_;  // where the placement has them
};

/// The two stacks of an encoder-decoder of this configuration.
StackShape encoder_shape(const TransformerConfig& config);
StackShape decoder_shape(const TransformerConfig& config);

}  // namespace tapeformer
