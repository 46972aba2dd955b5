// The norm plug: what a norm is to the rest of a model, and the table through which names such as
// "rmsnorm" resolve. The norms themselves are in three files, by what they mix: token_norms.h (a
// token's own features), batch_norms.h (samples) and time_norms.h (the times of a sample).
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
  Tensor lengths;         ///< [B] i32 on the host, or undefined: who is padding
  bool training = false;  ///< take the batch's statistics, not the running ones
  /// And let the running ones take part of them. Not in a second run of recompute(), nor where
  /// somebody only looks.
  bool update_statistics = true;

  NormContext() = default;
  explicit NormContext(const Context& context);
};

/// What a norm mixes into the output at one time step beside that step's own features: nothing,
/// other times of the same sample, or other samples too; in growing order. Whoever mixes leaks the
/// future in a causal model; who mixes outside training as well cannot decode token by token.
enum class Mixes { nothing, time, samples };

struct Norm : Module {
  /// x [B,T,C] -> y [B,T,C]
  virtual Tensor forward(const Tensor& x, const NormContext& context) = 0;
  /// sum = alpha residual + x, and its norm. Norms with a fused kernel override it.
  virtual SumAndNorm add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                 const NormContext& context);
  virtual Mixes mixes(bool /*training*/) const { return Mixes::nothing; }
  void visit(Visitor&) override {}
};

/// f(x, parameters...) computed in f32 or wider, in x's dtype: what a norm that is composed of
/// operations wraps around itself, because sums of squares overflow and lose digits in 16 bits.
template <class F, class... Parameters>
Tensor compute_wide(const F& f, const Tensor& x, const Parameters&... parameters) {
  return cast(f(widened(x), widened(parameters)...), x.dtype());
}

using NormFactory = std::function<std::unique_ptr<Norm>(int64_t channels)>;

/// The factory registered under `name`. Throws for an unknown one, listing the known.
NormFactory find_norm(const std::string& name);
std::vector<std::string> norm_names();
/// Makes a norm available by name, to every model and program. Throws when the name is taken.
void register_norm(const std::string& name, NormFactory factory);
/// Puts another factory under a known name and returns the one before: whether an experiment sees
/// the difference is a test of the experiment.
NormFactory replace_norm(const std::string& name, NormFactory factory);

}  // namespace tapeformer
