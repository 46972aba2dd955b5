// The position-wise feed-forward network.
#pragma once

#include <string>

#include "layers/linear.h"

namespace tapeformer {

/// gelu, gelu_tanh, relu, silu: down(activation(up(x))) (Vaswani et al. 2017, eq. 2).
/// swiglu: down(silu(a) * b) with (a, b) = up(x) (Shazeer 2020).
class FeedForward : public Module {
 public:
  /// Throws for an unknown activation, listing the known.
  FeedForward(int64_t channels, int64_t hidden, const std::string& activation, bool bias);

  /// [B,T,C] -> [B,T,C]
  Tensor forward(const Tensor& x) const {
    return down.forward(gated_ ? swiglu(up.forward(x)) : up.forward(x, activation_));
  }
  void visit(Visitor& visitor) override {
    visitor.module("up", up);
    visitor.module("down", down);
  }

  Linear up;    // [F, C], or [2F, C] when gated
  Linear down;  // [C, F]

 private:
  bool gated_;
  Activation activation_;
};

std::vector<std::string> activation_names();
/// F when none is given: 4 C, or for swiglu 8/3 C rounded up to a multiple of 32, which has about
/// as many parameters.
int64_t default_hidden_size(int64_t channels, const std::string& activation);

}  // namespace tapeformer
