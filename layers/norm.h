// The norm plug: what a norm is to the rest of a model, the norms themselves, and the table through
// which names such as "rmsnorm" resolve.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "layers/context.h"
#include "layers/module.h"

namespace tapeformer {

struct NormContext {
  Tensor lengths;  ///< [B] i32 or undefined: who is padding
  bool training = false;
  bool recomputing = false;  ///< the second run of recompute(): leave running statistics alone

  NormContext() = default;
  explicit NormContext(const Context& context);
};

/// What a norm mixes into the output at one time step beside that step's own features: nothing,
/// other times of the same sample, or other samples. Whoever mixes may leak the future in a causal
/// model and cannot decode token by token.
enum class Mixes { nothing, time, samples };

struct Norm : Module {
  /// x [B,T,C] -> y [B,T,C]
  virtual Tensor forward(const Tensor& x, const NormContext& context) = 0;
  /// sum = alpha residual + x, and its norm. Norms with a fused kernel override it.
  virtual SumAndNorm add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                 const NormContext& context);
  virtual Mixes mixes() const { return Mixes::nothing; }
  void visit(Visitor&) override {}
};

/// Ba et al. 2016. y = weight (x - mean) / sqrt(variance + epsilon) + bias.
struct LayerNorm : Norm {
  Tensor weight, bias;  // [C]; undefined: 1 and 0
  double epsilon;

  explicit LayerNorm(int64_t channels, bool with_bias = true, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  SumAndNorm add_forward(const Tensor& residual, const Tensor& x, double alpha,
                         const NormContext& context) override;
  void visit(Visitor& visitor) override;
};

/// Zhang & Sennrich 2019. y = weight x / sqrt(mean(x^2) + epsilon).
struct RMSNorm : Norm {
  Tensor weight;  // [C]
  double epsilon;

  explicit RMSNorm(int64_t channels, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  SumAndNorm add_forward(const Tensor& residual, const Tensor& x, double alpha,
                         const NormContext& context) override;
  void visit(Visitor& visitor) override;
};

/// y = x: what a norm's absence is measured against.
struct NoNorm : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return x; }
};

using NormFactory = std::function<std::unique_ptr<Norm>(int64_t channels)>;

/// The factory registered under `name`. Throws for an unknown one, listing the known.
NormFactory find_norm(const std::string& name);
std::vector<std::string> norm_names();
/// Makes a norm available by name, to every model and program. Throws when the name is taken.
void register_norm(const std::string& name, NormFactory factory);

}  // namespace tapeformer
