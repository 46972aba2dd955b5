// Norms whose statistics run over the times of a sample. In a causal model every one of them shows
// a token what comes after it, in training and outside: they are here to see what that does.
#pragma once

#include "layers/norm.h"

namespace tapeformer {

struct TimeNorm : Norm {
  Tensor weight, bias;  // [C]
  double epsilon;

  TimeNorm(int64_t channels, double epsilon);
  Mixes mixes(bool /*training*/) const override { return Mixes::time; }
  void visit(Visitor& visitor) override;
};

/// Wu & He 2018, eq. 7, as frameworks apply it to [B,C,T]: statistics over the times of a sample
/// and the channels of a group. Real tokens make the statistics, every token is normed with them.
struct TimeGroupNorm : TimeNorm {
  int64_t group_size;

  /// group_size 0: default_group_size(channels) of token_norms.h. Throws unless it divides the
  /// channels.
  explicit TimeGroupNorm(int64_t channels, int64_t group_size = 0, double epsilon = 1e-5);
  Tensor forward(const Tensor& x, const NormContext& context) override;
};

/// Ulyanov et al. 2016: groups of one channel.
struct InstanceNorm : TimeGroupNorm {
  explicit InstanceNorm(int64_t channels, double epsilon = 1e-5)
      : TimeGroupNorm(channels, 1, epsilon) {}
};

/// Layer norm along the wrong axis, the mistake of who takes [B,T,C] for [B,C,T]: each channel over
/// all T times. It knows of no lengths, so padding counts.
struct TimeLayerNorm : TimeNorm {
  explicit TimeLayerNorm(int64_t channels, double epsilon = 1e-5) : TimeNorm(channels, epsilon) {}
  Tensor forward(const Tensor& x, const NormContext& context) override;
};

}  // namespace tapeformer
