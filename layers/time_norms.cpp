#include "layers/time_norms.h"

#include <algorithm>

#include "layers/token_norms.h"

namespace tapeformer {

TimeNorm::TimeNorm(int64_t channels, double epsilon)
    : weight(make_parameter({channels}, 1)), bias(make_parameter({channels})), epsilon(epsilon) {}

void TimeNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

namespace {

// Which tokens of [B,T] are real, and how many of each sample.
struct RealTokens {
  Tensor padding;  // [B,T,1,1] i32: 1 for padding; undefined when there is none
  Tensor share;    // [B,1,1,1]: 1 / (real tokens), 1 where a sample has none

  RealTokens(const Tensor& x, const Tensor& lengths) : share(x.empty_like({x.dim(0), 1, 1, 1})) {
    const int64_t B = x.dim(0), T = x.dim(1);
    share.fill(1.0 / static_cast<double>(std::max<int64_t>(1, T)));
    if (!lengths.defined()) return;
    padding = reshape(padding_mask(lengths, T, x.device()), {B, T, 1, 1});
    std::vector<double> shares;
    for (const int64_t length : lengths.to_vector<int32_t>())
      shares.push_back(1.0 / static_cast<double>(std::clamp<int64_t>(length, 1, T)));
    share.copy_from(Tensor::from(shares, share.shape()));
  }
  // x [B,T,G,D] -> its mean over the real tokens and a group's channels [B,1,G,1].
  Tensor mean_of(const Tensor& x) const {
    const Tensor real = padding.defined() ? masked_fill(x, padding, 0) : x;
    return mean(sum(real, 1, true), -1, true) * share;
  }
};

void check_time(const char* operation, const Tensor& x, const Tensor& lengths) {
  check(x.rank() == 3, operation, ": needs x [B, T, C], got ", x.shape());
  check(!lengths.defined() || lengths.shape() == Shape{x.dim(0)}, operation, ": lengths must be [",
        x.dim(0), "], one for each sample, got ", lengths.defined() ? lengths.shape() : Shape{});
}

}  // namespace

TimeGroupNorm::TimeGroupNorm(int64_t channels, int64_t group_size, double epsilon)
    : TimeNorm(channels, epsilon), group_size(checked_group_size(channels, group_size)) {}

Tensor TimeGroupNorm::forward(const Tensor& x, const NormContext& context) {
  check_time("group norm over time", x, context.lengths);
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        const RealTokens real(x, context.lengths);
        const Tensor groups = reshape(x, {x.dim(0), x.dim(1), -1, group_size});  // [B,T,G,D]
        const Tensor centred = groups - real.mean_of(groups);
        const Tensor variance = real.mean_of(centred * centred);
        return weight * reshape(centred * pow(variance + epsilon, -0.5), x.shape()) + bias;
      },
      x, weight, bias);
}

Tensor TimeLayerNorm::forward(const Tensor& x, const NormContext&) {
  check_time("layer norm over time", x, {});
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        const Tensor channels = transpose(x, 1, 2);  // [B,C,T]
        return weight * transpose(layer_norm(channels, {}, {}, epsilon), 1, 2) + bias;
      },
      x, weight, bias);
}

}  // namespace tapeformer
