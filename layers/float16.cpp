#include "layers/float16.h"

#include <algorithm>
#include <cmath>

namespace tapeformer {
namespace {

// Rounds, and counts what was lost. Sums and products of halves are finite in f32, so an infinite
// argument was infinite before.
struct Rounder {
  int64_t overflows = 0, underflows = 0;

  float operator()(float exact) {
    const float rounded = f16(exact);
    overflows += std::isinf(rounded) && !std::isinf(exact);
    underflows += rounded == 0 && exact != 0;
    return rounded;
  }
};

// One row, rounded after every operation. x, gain and shift are halves; shift may be null. Leaves
// x - mean in x.
void norm_row(std::vector<float>& x, const float* gain, const float* shift, float epsilon,
              bool centred, Rounder& half, float* y) {
  const float count = f16(static_cast<float>(x.size()));
  if (centred) {
    float mean = 0;
    for (const float value : x) mean = half(mean + value);
    mean = half(mean / count);
    for (float& value : x) value = half(value - mean);
  }
  float square = 0;
  for (const float value : x) square = half(square + half(value * value));
  const float root = half(std::sqrt(half(half(square / count) + epsilon)));
  half.overflows += root == 0;  // its inverse is infinite
  const float scale = half(1 / root);
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = half(half(x[i] * scale) * gain[i]);
    if (shift) y[i] = half(y[i] + shift[i]);
  }
}

// The same in double; only the output is rounded. f32, which one would take, is as good here: its
// rounding is 2^-13 of a half's.
void norm_row_wide(const std::vector<float>& x, const float* gain, const float* shift,
                   double epsilon, bool centred, Rounder& half, float* y) {
  double mean = 0, square = 0;
  for (const float value : x) mean += centred ? value / static_cast<double>(x.size()) : 0;
  for (const float value : x) square += (value - mean) * (value - mean);
  const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + epsilon);
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = half(static_cast<float>((x[i] - mean) * scale * gain[i] + (shift ? shift[i] : 0)));
}

std::vector<float> halves(const Tensor& x) {
  if (!x.defined()) return {};
  std::vector<float> values = cast(x.detach(), DType::f32).to_vector<float>();
  for (float& value : values) value = f16(value);
  return values;
}

}  // namespace

HalfNorm::HalfNorm(int64_t channels, bool centred, HalfRemedy remedy)
    : weight(make_parameter({channels}, 1)),
      bias(centred ? make_parameter({channels}) : Tensor{}),
      clamp(std::sqrt(65504 / (2.0 * static_cast<double>(channels)))),
      centred_(centred),
      remedy_(remedy) {}

Tensor HalfNorm::forward(const Tensor& x, const NormContext&) {
  check(!recording({x, weight}),
        "float16 norm: emulates the forward pass only and has no gradient; evaluate a model that "
        "was trained with layernorm or rmsnorm");
  const int64_t C = weight.numel();
  check(x.dim(-1) == C, "float16 norm: expects ", C, " features, got ", x.shape());
  const Tensor in = cast(x, DType::f32), out = in.empty_like();
  const std::vector<float> gain = halves(weight), shift = halves(bias);
  const float *weights = gain.data(), *biases = shift.empty() ? nullptr : shift.data();
  Rounder half;
  const float half_epsilon = half(static_cast<float>(epsilon));
  const float bound = f16(static_cast<float>(clamp));
  std::vector<float> row(C);
  for (int64_t start = 0; start < in.numel(); start += C) {
    for (int64_t i = 0; i < C; ++i) {
      row[i] = half(in.data<float>()[start + i]);
      if (remedy_ == HalfRemedy::clamp) row[i] = std::clamp(row[i], -bound, bound);
    }
    float* y = out.data<float>() + start;
    if (remedy_ == HalfRemedy::wide_statistics)
      norm_row_wide(row, weights, biases, epsilon, centred_, half, y);
    else
      norm_row(row, weights, biases, half_epsilon, centred_, half, y);
  }
  overflows = half.overflows;
  underflows = half.underflows;
  return cast(out, x.dtype());
}

void HalfNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

std::vector<std::string> float16_norms_of(const std::string& norm) {
  if (norm != "layernorm" && norm != "rmsnorm") return {};
  return {norm + "-float16", norm + "-float16-clamp", norm + "-float16-f32stats"};
}

void register_float16_norms() {
  static const bool once = [] {
    for (const bool centred : {true, false}) {
      const auto names = float16_norms_of(centred ? "layernorm" : "rmsnorm");
      const HalfRemedy remedies[] = {HalfRemedy::none, HalfRemedy::clamp,
                                     HalfRemedy::wide_statistics};
      for (size_t i = 0; i < names.size(); ++i)
        register_norm(names[i], [=, remedy = remedies[i]](int64_t channels) {
          return std::make_unique<HalfNorm>(channels, centred, remedy);
        });
    }
    return true;
  }();
  (void)once;
}

}  // namespace tapeformer
