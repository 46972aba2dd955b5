// A linear map, with its bias and optionally its activation in the same pass.
#pragma once

#include "autograd/ops.h"
#include "layers/module.h"

namespace tapeformer {

struct Linear : Module {
  Tensor weight;  // [O, I], as in PyTorch
  Tensor bias;    // [O] or undefined

  Linear(int64_t inputs, int64_t outputs, bool with_bias = true)
      : weight(make_parameter({outputs, inputs})),
        bias(with_bias ? make_parameter({outputs}) : Tensor{}) {}

  /// x [.., I] -> activation(x weight^T + bias) [.., O]
  Tensor forward(const Tensor& x, Activation activation = Activation::none) const {
    return linear(x, weight, bias, activation);
  }

  void visit(Visitor& visitor) override {
    visitor.parameter("weight", weight);
    visitor.parameter("bias", bias);
  }
};

}  // namespace tapeformer
