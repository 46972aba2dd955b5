// float16 by emulation: what half precision does to a norm.
#include "layers/float16.h"

#include <cmath>

#include "layers/gpt.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

// Rows of +-magnitude: their mean is zero, also when summed in half precision.
Tensor alternating(double magnitude, int64_t channels) {
  std::vector<float> values;
  for (int64_t i = 0; i < channels; ++i)
    values.push_back(static_cast<float>(i % 2 ? -magnitude : magnitude));
  return Tensor::from(values, {1, 1, channels});
}

HalfNorm layer(int64_t channels, HalfRemedy remedy = HalfRemedy::none) {
  return {channels, true, remedy};
}

// The norm itself in double, with weight 1 and bias 0.
std::vector<double> exact(const Tensor& x, bool centred) {
  const std::vector<double> in = values_of(x);
  const auto n = static_cast<double>(in.size());
  double mean = 0, square = 0;
  for (const double value : in) mean += centred ? value / n : 0;
  for (const double value : in) square += (value - mean) * (value - mean) / n;
  std::vector<double> out;
  for (const double value : in) out.push_back((value - mean) / std::sqrt(square + 1e-5));
  return out;
}

}  // namespace

TEST_CASE("an_epsilon_of_1e_8_is_zero_in_half_precision") {
  CHECK(float(f16(1e-8f)) == 0);
  CHECK(float(f16(1e-5f)) == 168 * 0x1p-24f);
  HalfNorm norm = layer(8);
  norm.epsilon = 1e-8;
  norm.forward(alternating(1, 8), {});
  CHECK(norm.underflows == 1);
  CHECK(norm.overflows == 0);
  norm.forward(Tensor::zeros({1, 1, 8}), {});
  CHECK(norm.underflows == 1);
  CHECK(norm.overflows == 1);  // 1 / sqrt(0)
}

TEST_CASE("the_norms_agree_with_exact_ones_where_half_precision_suffices") {
  const Tensor x = random_tensor({1, 1, 64}, 1, DType::f32);
  for (const bool centred : {true, false}) {
    for (const HalfRemedy remedy :
         {HalfRemedy::none, HalfRemedy::clamp, HalfRemedy::wide_statistics}) {
      HalfNorm norm(64, centred, remedy);
      const Tensor y = norm.forward(x, {});
      // Half of the last of 11 bits, over a sum of 64 terms and a few operations more.
      const double bound = remedy == HalfRemedy::wide_statistics ? 1.5e-3 : 1e-2;
      CHECK(largest_error(y, exact(x, centred)) < bound);
      CHECK(largest_error(y, exact(x, centred)) > 1e-5);  // but it is rounded
      for (const double value : values_of(y)) CHECK(float(f16(static_cast<float>(value))) == value);
      CHECK(norm.overflows == 0);
    }
  }
}

TEST_CASE("weight_and_bias_act_in_half_precision_too") {
  const Tensor x = random_tensor({1, 1, 64}, 1, DType::f32);
  for (const HalfRemedy remedy : {HalfRemedy::none, HalfRemedy::wide_statistics}) {
    HalfNorm plain = layer(64, remedy), scaled = layer(64, remedy);
    scaled.weight.fill(2);
    scaled.bias.fill(0.5);
    const std::vector<double> y = values_of(plain.forward(x, {}));
    std::vector<double> expected;
    for (const double value : y) expected.push_back(2 * value + 0.5);
    CHECK(largest_error(scaled.forward(x, {}), expected) < 2e-3);
  }
}

TEST_CASE("a_square_overflows_from_256_on_and_the_output_is_silently_zero") {
  HalfNorm norm = layer(2);
  norm.forward(alternating(180, 2), {});  // 2 * 180^2 = 64,800
  CHECK(norm.overflows == 0);
  norm.forward(alternating(255.875, 2), {});
  CHECK(norm.overflows == 1);  // the sum of the two squares alone
  const Tensor y = norm.forward(alternating(256, 2), {});
  CHECK(norm.overflows == 2);  // each square
  for (const double value : values_of(y)) CHECK(value == 0);
}

TEST_CASE("the_sum_of_512_squares_overflows_from_a_root_mean_square_of_11_3_on") {
  for (const bool centred : {true, false}) {
    HalfNorm norm(512, centred, HalfRemedy::none);
    double first = 0;
    for (double rms = 10; rms < 13 && first == 0; rms += 0x1p-6) {
      const Tensor y = norm.forward(alternating(rms, 512), {});
      if (norm.overflows > 0) {
        first = rms;
        CHECK(norm.overflows == 1);
        for (const double value : values_of(y)) CHECK(value == 0);
      }
    }
    CHECK(first == Approx(std::sqrt(65504 / 512.0)).epsilon(0.03));
  }
}

TEST_CASE("statistics_in_f32_keep_the_function_and_clamping_changes_it") {
  const Tensor x = random_tensor({1, 1, 512}, 3, DType::f32) * 300.0;
  const std::vector<double> truth = exact(x, true);
  HalfNorm plain = layer(512), wide = layer(512, HalfRemedy::wide_statistics);
  HalfNorm clamped = layer(512, HalfRemedy::clamp);
  for (const double value : values_of(plain.forward(x, {}))) CHECK(value == 0);
  CHECK(plain.overflows > 0);
  CHECK(largest_error(wide.forward(x, {}), truth) < 2e-3);
  CHECK(wide.overflows == 0);
  const Tensor y = clamped.forward(x, {});
  CHECK(clamped.overflows == 0);
  CHECK(largest_error(y, truth) > 0.5);
}

TEST_CASE("clamped_rows_cannot_overflow") {
  for (const int64_t channels : {2, 64, 512, 4096}) {
    for (const double magnitude : {1.0, 5.0, 8.0, 11.0, 300.0, 6e4}) {
      HalfNorm norm(channels, false, HalfRemedy::clamp);
      norm.forward(alternating(magnitude, channels), {});
      CHECK(norm.overflows == 0);
    }
  }
}

TEST_CASE("the_counts_are_of_the_last_pass") {
  HalfNorm norm = layer(4);
  norm.forward(alternating(1e6, 4), {});
  CHECK(norm.overflows == 4);  // the input itself
  norm.forward(alternating(1, 4), {});
  CHECK(norm.overflows == 0);
  CHECK(norm.underflows == 0);
  norm.forward(alternating(1e-4, 4), {});
  CHECK(norm.underflows == 4);  // its squares are below 2^-25
}

TEST_CASE("emulated_norms_have_names_and_refuse_to_be_trained") {
  register_float16_norms();
  register_float16_norms();
  CHECK(float16_norms_of("batchnorm").empty());
  TransformerConfig config{
      .vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .channels = 8, .norm = "layernorm"};
  const Tensor tokens = Tensor::from<int32_t>({1, 2, 3, 4}, {1, 4});
  GPT model(config);
  for (const std::string& name : float16_norms_of("layernorm")) {
    config.norm = name;
    GPT emulated(config);
    CHECK(copy_tensors(model, emulated).empty());
    CHECK(largest_error(emulated.logits(tokens), model.logits(tokens)) < 1e-2);
    Tape tape;
    CHECK_THROWS_WITH(emulated.logits(tokens), ContainsSubstring("no gradient"));
  }
  CHECK(float16_norms_of("rmsnorm").size() == 3);
  for (const std::string& name : float16_norms_of("rmsnorm")) {
    const auto norm = find_norm(name)(8);
    CHECK(named_tensors(*norm).size() == 1);
    CHECK(values_of(norm->forward(Tensor::full({1, 1, 8}, 2), {}))[0] == Approx(1).epsilon(2e-3));
  }
}
