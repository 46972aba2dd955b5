// An encoder on its own: tokens in, one state for each out, every state seeing all tokens (the
// shape of BERT, Devlin et al. 2019).
#pragma once

#include "layers/stack.h"

namespace tapeformer {

class Encoder : public Module {
 public:
  /// Of config.layers blocks. Weights are drawn by `seed` (initialization.h).
  explicit Encoder(const TransformerConfig& config, uint64_t seed = 1);

  /// tokens (i32) [B,T] -> [B,T,C], after the final norm. What context.lengths calls padding is
  /// seen by nobody.
  Tensor forward(const Tensor& tokens, const Context& context = {});
  void visit(Visitor& visitor) override;

 private:
  Embedding tokens_;
  Stack stack_;
};

}  // namespace tapeformer
