// Norms of single tokens: each row of x [B,T,C] for itself, the same in training and outside, so
// nothing leaks between times or samples.
#pragma once

#include "layers/norm.h"

namespace tapeformer {

struct LayerNormOptions {
  bool weight = true, bias = true;
  bool detached = false;  ///< mean and deviation are constants in backward (DetachNorm)
  double epsilon = 1e-5;
};

/// Ba et al. 2016. y = weight (x - mean) / sqrt(variance + epsilon) + bias. Without weight and bias
/// it is LayerNorm-simple, detached it is DetachNorm (Xu et al. 2019, section 3).
struct LayerNorm : Norm {
  Tensor weight, bias;  // [C]; undefined: 1 and 0
  double epsilon;
  bool detached;

  explicit LayerNorm(int64_t channels, const LayerNormOptions& options = {});
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

/// pRMSNorm (Zhang & Sennrich 2019): the mean of x^2 is taken over the first channels only, 6.25 %
/// of them, at least one.
struct PartialRMSNorm : Norm {
  Tensor weight;  // [C]
  int64_t measured;
  double epsilon;

  explicit PartialRMSNorm(int64_t channels, double share = 0.0625, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;
};

/// Nguyen & Salazar 2019. y = weight x / max(|x|, epsilon), one weight, which starts at sqrt(C).
struct ScaleNorm : Norm {
  Tensor weight;  // [1]
  double epsilon;

  explicit ScaleNorm(int64_t channels, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;
};

/// Xu et al. 2019, section 4. y = scale (1 - k t) t, t the layer norm of x without weight and bias;
/// the factor before t is a constant in backward. No parameters.
struct AdaNorm : Norm {
  double scale, k, epsilon;

  explicit AdaNorm(int64_t channels, double scale = 1, double k = 0.1, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
};

/// Wu & He 2018, of single tokens: the channels in groups, each normed as by LayerNorm.
struct GroupNorm : Norm {
  Tensor weight, bias;  // [C]
  int64_t group_size;
  double epsilon;

  /// group_size 0: default_group_size(channels). Throws unless it divides the channels.
  explicit GroupNorm(int64_t channels, int64_t group_size = 0, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;
};
/// The smallest divisor of `channels` that is 16 or more; `channels` itself where there is none.
int64_t default_group_size(int64_t channels);
/// `group_size`, or the default in place of 0. Throws unless it divides `channels`.
int64_t checked_group_size(int64_t channels, int64_t group_size);

/// Dynamic tanh (Zhu et al. 2025). y = weight tanh(alpha x) + bias: no statistics at all.
struct DyT : Norm {
  Tensor alpha;         // [1], starts at 0.5
  Tensor weight, bias;  // [C]

  explicit DyT(int64_t channels);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;
};

/// y = x: what a norm's absence is measured against.
struct NoNorm : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return x; }
};

}  // namespace tapeformer
