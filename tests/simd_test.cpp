// The vectorised functions against double, over all of float's range.
#include "core/cpu/simd.h"

#include <vector>

#include "core/cpu/activation.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// |got - want| in units of the last place of want as a float.
double error_in_ulp(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : 1e9;
  if (std::isnan(got)) return 1e9;
  const float magnitude = std::fabs(rounded);
  const double ulp = static_cast<double>(magnitude) - std::nextafter(magnitude, -infinity);
  return std::fabs(got - want) / ulp;
}

// The worst error over every 5003rd float: denormals, infinities and NaNs among them.
double worst_error(float (*f)(float), double (*reference)(double)) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 5003) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    worst = std::max(worst, error_in_ulp(f(x), reference(x)));
  }
  for (float x = -20; x < 20; x += 1.0f / 4096)  // densely, where it matters
    worst = std::max(worst, error_in_ulp(f(x), reference(x)));
  return worst;
}

}  // namespace

TEST_CASE("exp_is_right_to_2_ulp") {
  CHECK(worst_error([](float x) { return simd::exp(x); }, [](double x) { return std::exp(x); }) <
        2);
  CHECK(simd::exp(0.0f) == 1);
  CHECK(simd::exp(-infinity) == 0);
  CHECK(simd::exp(infinity) == infinity);
  CHECK(simd::exp(89.0f) == infinity);
  CHECK(std::isnan(simd::exp(std::nanf(""))));
}

TEST_CASE("log_is_right_to_2_ulp") {
  CHECK(worst_error([](float x) { return simd::log(x); }, [](double x) { return std::log(x); }) <
        2);
  CHECK(simd::log(1.0f) == 0);
  CHECK(simd::log(0.0f) == -infinity);
  CHECK(simd::log(infinity) == infinity);
  CHECK(std::isnan(simd::log(-1.0f)));
}

TEST_CASE("tanh_is_right_to_4_ulp") {
  CHECK(worst_error([](float x) { return simd::tanh(x); }, [](double x) { return std::tanh(x); }) <
        4);
  CHECK(simd::tanh(infinity) == 1);
  CHECK(simd::tanh(-infinity) == -1);
  CHECK(std::signbit(simd::tanh(-0.0f)));
}

TEST_CASE("sigmoid_is_right_to_4_ulp") {
  CHECK(worst_error([](float x) { return simd::sigmoid(x); },
                    [](double x) { return 1 / (1 + std::exp(-x)); }) < 4);
  CHECK(simd::sigmoid(-infinity) == 0);
  CHECK(simd::sigmoid(infinity) == 1);
}

TEST_CASE("normal_distribution_is_right_to_2e-7") {
  double worst = 0;
  for (float x = -30; x < 30; x += 1.0f / 1024) {
    const simd::Normal<float> got = simd::normal(x);
    const simd::Normal<double> want = simd::normal(static_cast<double>(x));
    worst = std::max({worst, std::fabs(got.cdf - want.cdf), std::fabs(got.density - want.density)});
  }
  CHECK(worst < 2e-7);
  CHECK(simd::normal(0.0f).cdf == Approx(0.5));
  CHECK(simd::normal(1e30f).cdf == 1);
  CHECK(simd::normal(-1e30f).cdf == 0);
  CHECK(std::isnan(simd::normal(std::nanf("")).cdf));
}

namespace {

template <class F>
void check_activation(double bound) {
  double value = 0, derivative = 0, slope = 0;
  for (float x = -12; x < 12; x += 1.0f / 1024) {
    const double exact = x, step = 1e-6;
    value = std::max(value, std::fabs(F::value(x) - F::value(exact)) / (1 + std::fabs(exact)));
    derivative = std::max(derivative, std::fabs(F::derivative(x) - F::derivative(exact)));
    if (x != 0)  // where relu has its corner
      slope =
          std::max(slope, std::fabs((F::value(exact + step) - F::value(exact - step)) / (2 * step) -
                                    F::derivative(exact)));
  }
  CHECK(value < bound);
  CHECK(derivative < bound);
  CHECK(slope < 1e-8);
}

}  // namespace

TEST_CASE("activations_in_float_agree_with_double_and_derivatives_with_differences") {
  check_activation<cpu::Relu>(1e-30);
  check_activation<cpu::Gelu>(4e-7);
  check_activation<cpu::GeluTanh>(1e-6);
  check_activation<cpu::Silu>(4e-7);
}

TEST_CASE("gelu_is_zero_far_below_and_the_identity_far_above") {
  for (const float x : {30.0f, 1e10f, 1e30f}) {
    CHECK(cpu::Gelu::value(x) == x);
    CHECK(cpu::Gelu::value(-x) == 0);
    CHECK(cpu::GeluTanh::value(x) == x);
    CHECK(cpu::GeluTanh::value(-x) == 0);
  }
}

TEST_CASE("every_activation_keeps_a_nan") {
  const float nan = std::nanf("");
  CHECK(std::isnan(cpu::Relu::value(nan)));
  CHECK(std::isnan(cpu::Gelu::value(nan)));
  CHECK(std::isnan(cpu::GeluTanh::value(nan)));
  CHECK(std::isnan(cpu::Silu::value(nan)));
}
