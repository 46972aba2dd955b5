#include "layers/token_norms.h"

#include <algorithm>
#include <cmath>

namespace tapeformer {

LayerNorm::LayerNorm(int64_t channels, const LayerNormOptions& options)
    : weight(options.weight ? make_parameter({channels}, 1) : Tensor{}),
      bias(options.bias ? make_parameter({channels}) : Tensor{}),
      epsilon(options.epsilon),
      detached(options.detached) {}

Tensor LayerNorm::forward(const Tensor& x, const NormContext&) {
  return layer_norm(x, weight, bias, epsilon, detached);
}

SumAndNorm LayerNorm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                  const NormContext&) {
  return add_layer_norm(residual, x, alpha, weight, bias, epsilon, detached);
}

void LayerNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

RMSNorm::RMSNorm(int64_t channels, double epsilon)
    : weight(make_parameter({channels}, 1)), epsilon(epsilon) {}

Tensor RMSNorm::forward(const Tensor& x, const NormContext&) {
  return rms_norm(x, weight, epsilon);
}

SumAndNorm RMSNorm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                const NormContext&) {
  return add_rms_norm(residual, x, alpha, weight, epsilon);
}

void RMSNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight); }

PartialRMSNorm::PartialRMSNorm(int64_t channels, double share, double epsilon)
    : weight(make_parameter({channels}, 1)),
      measured(std::max<int64_t>(1, static_cast<int64_t>(share * channels))),
      epsilon(epsilon) {
  check(share > 0 && share <= 1, "partial RMS norm: the share of channels must be in (0, 1], got ",
        share);
}

Tensor PartialRMSNorm::forward(const Tensor& x, const NormContext&) {
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight) {
        const Tensor first = slice(x, -1, 0, measured);
        return weight * (x * pow(mean(first * first, -1, true) + epsilon, -0.5));
      },
      x, weight);
}

void PartialRMSNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight); }

ScaleNorm::ScaleNorm(int64_t channels, double epsilon)
    : weight(make_parameter({1}, std::sqrt(channels))), epsilon(epsilon) {}

Tensor ScaleNorm::forward(const Tensor& x, const NormContext&) {
  return scale_norm(x, weight, epsilon);
}

void ScaleNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight); }

AdaNorm::AdaNorm(int64_t /*channels*/, double scale, double k, double epsilon)
    : scale(scale), k(k), epsilon(epsilon) {}

Tensor AdaNorm::forward(const Tensor& x, const NormContext&) {
  return compute_wide(
      [&](const Tensor& x) {
        const Tensor t = layer_norm(x, {}, {}, epsilon);
        return affine(t.detach(), -scale * k, scale) * t;
      },
      x);
}

int64_t default_group_size(int64_t channels) {
  int64_t size = 16;
  while (size < channels && channels % size != 0) ++size;
  return std::min(size, channels);
}

int64_t checked_group_size(int64_t channels, int64_t group_size) {
  if (group_size == 0) return default_group_size(channels);
  check(group_size > 0 && channels % group_size == 0, "group norm: groups of ", group_size,
        " do not divide ", channels, " channels; choose a divisor");
  return group_size;
}

GroupNorm::GroupNorm(int64_t channels, int64_t group_size, double epsilon)
    : weight(make_parameter({channels}, 1)),
      bias(make_parameter({channels})),
      group_size(checked_group_size(channels, group_size)),
      epsilon(epsilon) {}

Tensor GroupNorm::forward(const Tensor& x, const NormContext&) {
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        const Tensor groups = reshape(x, {-1, group_size});
        return weight * reshape(layer_norm(groups, {}, {}, epsilon), x.shape()) + bias;
      },
      x, weight, bias);
}

void GroupNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

DyT::DyT(int64_t channels)
    : alpha(make_parameter({1}, 0.5)),
      weight(make_parameter({channels}, 1)),
      bias(make_parameter({channels})) {}

Tensor DyT::forward(const Tensor& x, const NormContext&) { return dyt(x, alpha, weight, bias); }

void DyT::visit(Visitor& visitor) {
  visitor.parameter("alpha", alpha);
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

}  // namespace tapeformer
