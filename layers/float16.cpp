#include "layers/float16.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tapeformer {

float round_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits & 0x80000000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t infinity = 0x7f800000u;
  constexpr uint32_t smallest_normal = 0x38800000u;  // 2^-14
  constexpr uint32_t first_above_all = 0x47800000u;  // 2^16
  if (magnitude >= infinity) return value;
  if (magnitude < smallest_normal) {
    // Subnormal halves are the multiples of 2^-24. The floats near 0.5 are as far apart, so adding
    // 0.5 rounds to one, ties to even.
    const float rounded = (std::bit_cast<float>(magnitude) + 0.5f) - 0.5f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(rounded));
  }
  // 13 of the 23 bits go. Adding just under half of the last kept one, and one more where that is
  // odd, carries into it where rounding goes up; a carry out of all moves on to the exponent.
  magnitude += 0xfffu + (magnitude >> 13 & 1);
  magnitude &= ~0x1fffu;
  return std::bit_cast<float>(sign | (magnitude >= first_above_all ? infinity : magnitude));
}

namespace {

// Rounds, and counts what was lost. Sums and products of halves are finite in f32, so an infinite
// argument was infinite before.
struct Rounder {
  int64_t overflows = 0, underflows = 0;

  float operator()(float exact) {
    const float rounded = round_to_half(exact);
    overflows += std::isinf(rounded) && !std::isinf(exact);
    underflows += rounded == 0 && exact != 0;
    return rounded;
  }
};

// One row, rounded after every operation. x, gain and shift are halves; shift may be null. Leaves
// x - mean in x.
void norm_row(std::vector<float>& x, const float* gain, const float* shift, float epsilon,
              bool centred, Rounder& half, float* y) {
  const float count = round_to_half(static_cast<float>(x.size()));
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
  for (float& value : values) value = round_to_half(value);
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
  const float bound = round_to_half(static_cast<float>(clamp));
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
