// Norms whose statistics run over all tokens of a batch, and which keep a running value of them for
// use outside training. In training they mix samples and times.
#pragma once

#include "layers/norm.h"

namespace tapeformer {

/// What BatchNorm and PowerNorm share: the running statistics. They are buffers, of f32 or wider,
/// and change in place once for every training pass: not when recompute() runs it again, nor
/// otherwise without NormContext::update_statistics.
struct RunningNorm : Norm {
  Tensor weight, bias;      // [C]
  Tensor running_mean;      // [C]; undefined without centring
  Tensor running_variance;  // [C]; the mean of x^2 without centring
  double epsilon = 1e-5;
  Moments batch;  ///< of the last forward pass that took the batch's moments; not a buffer

  RunningNorm(int64_t channels, bool centred);
  /// running = (1 - share) running + share moments.
  virtual void update(const Moments& moments, double share);
  Mixes mixes(bool training) const override { return training ? Mixes::samples : Mixes::nothing; }
  void visit(Visitor& visitor) override;

 protected:
  /// Copies: the next update must not change what a backward still needs.
  Moments running() const;
};

/// Ioffe & Szegedy 2015, over the real tokens of a batch (`masked`) or, the mistake of who forgets
/// the padding, over all of them. y = weight (x - mean) / sqrt(variance + epsilon) + bias.
struct BatchNorm : RunningNorm {
  bool masked;
  double momentum = 0.1;  ///< the share of a batch in the running statistics

  explicit BatchNorm(int64_t channels, bool masked = true);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  /// As in PyTorch, the running variance is that of the population: v n / (n - 1).
  void update(const Moments& moments, double share) override;
};

/// PowerNorm (Shen et al. 2020). With v the mean of x^2 over the real tokens of a batch and phi its
/// running value:
///   PN-V, the first `warm_up` steps:  z = x / sqrt(v + epsilon), with its exact gradient;
///   PN, afterwards:                   z = x / sqrt(phi + epsilon), phi from before this step, with
///                                     an approximate gradient that a running value e corrects;
///   outside training:                 z = x / sqrt(phi + epsilon);
/// and y = weight z + bias.
struct PowerNorm : RunningNorm {  // phi is running_variance, and starts at 1
  Tensor e;     // [C], a buffer: running mean of z times its gradient; undefined for PN-V only
  Tensor step;  // [1] i32, a buffer: training passes so far
  int64_t warm_up = 200;
  double alpha = 0.9;  ///< how much of phi and e stays in a step
  /// Above 0, x is first divided by the root mean square of each of so many groups of a token's
  /// channels (the paper's code calls it group scaling).
  int64_t groups = 0;

  /// Not `running_in_training`: PN-V throughout; phi is for use outside training.
  explicit PowerNorm(int64_t channels, bool running_in_training = true);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;

 private:
  Tensor training_pass(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const NormContext& context);
  Tensor scale_groups(const Tensor& x) const;
};

}  // namespace tapeformer
