// A table of vectors, looked up by index.
#pragma once

#include "autograd/ops.h"
#include "layers/module.h"

namespace tapeformer {

struct Embedding : Module {
  Tensor weight;  // [V, C]

  Embedding(int64_t count, int64_t channels) : weight(make_parameter({count, channels})) {}

  /// indices (i32) [..] -> [.., C]
  Tensor forward(const Tensor& indices) const { return embedding(weight, indices); }

  void visit(Visitor& visitor) override { visitor.parameter("weight", weight); }
};

}  // namespace tapeformer
