// Softmax and log-softmax against their formulas, at their limits, and their gradients.
#include <cmath>
#include <limits>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/random_tensor.h"

namespace tapeformer {
namespace {

using Inputs = std::vector<Tensor>;
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> formula(const Tensor& x, bool logarithm) {
  const int64_t C = x.dim(-1);
  const std::vector<double> in = values_of(x);
  std::vector<double> out;
  for (size_t row = 0; row < in.size(); row += C) {
    double sum = 0;
    for (int64_t i = 0; i < C; ++i) sum += std::exp(in[row + i]);
    for (int64_t i = 0; i < C; ++i)
      out.push_back(logarithm ? in[row + i] - std::log(sum) : std::exp(in[row + i]) / sum);
  }
  return out;
}

TEST_CASE("softmax_follows_its_formula") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int64_t C : {1, 2, 31, 33, 64, 257, 1000}) {
      const Tensor x = affine(random_tensor({7, C}, 1, dtype), 3, 0);
      CHECK(largest_error(softmax(x), formula(x, false)) < (dtype == DType::f32 ? 5e-7 : 1e-14));
      CHECK(largest_error(log_softmax(x), formula(x, true)) < (dtype == DType::f32 ? 5e-7 : 1e-14));
    }
}

TEST_CASE("softmax_neither_overflows_nor_loses_small_differences") {
  const Tensor x = Tensor::from<float>({10000, 10001, -10000, 10000});
  const double e = std::exp(1.0);
  CHECK(largest_error(softmax(x), {1 / (2 + e), e / (2 + e), 0, 1 / (2 + e)}) < 3e-7);
  CHECK(largest_error(log_softmax(Tensor::from<float>({0, -1000})), {0, -1000}) == 0);
  const double rest = -std::log1p(std::exp(-10.0));
  CHECK(values_of(log_softmax(Tensor::from<float>({7, -3})))[0] == Approx(rest).epsilon(2e-3));
}

TEST_CASE("a_row_of_minus_infinity_gives_zeros_and_zero_gradient") {
  const float low = -std::numeric_limits<float>::infinity();
  const Tensor x = requires_gradient(Tensor::from<float>({low, low, low, 1, low, 2}, {2, 3}));
  Tape tape;
  const Tensor y = softmax(x);
  const double p = 1 / (1 + std::exp(1.0));
  CHECK(largest_error(y, {0, 0, 0, p, 0, 1 - p}) < 1e-7);
  const Tensor dy = Tensor::from<float>({1, 2, 3, 1, 5, 2}, {2, 3});
  tape.backward_from({&y, 1}, {&dy, 1});
  CHECK(largest_error(gradient(x), {0, 0, 0, -p * (1 - p), 0, p * (1 - p)}) < 1e-7);
  CHECK(values_of(log_softmax(x.detach()))[0] == -infinity);
}

TEST_CASE("softmax_keeps_nan") {
  const float low = -std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const float other : {low, 1.0f}) {
    for (const double y : values_of(softmax(Tensor::from<float>({nan, nan})))) CHECK(std::isnan(y));
    CHECK(std::isnan(values_of(softmax(Tensor::from<float>({other, nan})))[1]));
    CHECK(std::isnan(values_of(log_softmax(Tensor::from<float>({other, nan})))[1]));
  }
}

TEST_CASE("gradients_of_softmax_are_right_over_every_dimension") {
  for (const int64_t C : {1, 31, 33}) {
    CHECK(gradcheck([](const Inputs& in) { return softmax(in[0]); }, {random_tensor({3, C}, 1)}));
    CHECK(
        gradcheck([](const Inputs& in) { return log_softmax(in[0]); }, {random_tensor({3, C}, 1)}));
  }
  for (const int dim : {0, 1, 2, -3, -2, -1}) {
    const auto f = [dim](const Inputs& in) { return softmax(in[0], dim); };
    const auto g = [dim](const Inputs& in) { return log_softmax(in[0], dim); };
    CHECK(gradcheck(f, {random_tensor({2, 3, 5}, 1)}));
    CHECK(gradcheck(g, {random_tensor({2, 3, 5}, 1)}));
    const Tensor ones = sum(softmax(random_tensor({2, 3, 5}, 2), dim), dim);
    CHECK(largest_error(ones, std::vector<double>(ones.numel(), 1)) < 1e-14);
  }
}

TEST_CASE("softmax_gives_the_same_bits_on_any_number_of_threads") {
  const Tensor x = random_tensor({300, 257}, 1, DType::f32);
  const Tensor dy = random_tensor({300, 257}, 2, DType::f32);
  CHECK(threads_do_not_matter([&] {
    const Tensor y = softmax(x), z = log_softmax(x), dx = x.empty_like(), dz = x.empty_like();
    kernels::softmax_backward(dy, y, Destination{dx});
    kernels::log_softmax_backward(dy, z, Destination{dz});
    return Inputs{y, z, dx, dz};
  }));
}

TEST_CASE("softmax_says_what_does_not_fit") {
  CHECK_THROWS_WITH(softmax(Tensor::zeros({2, 3}), 2), "softmax: shape [2, 3] has no dimension 2");
  CHECK_THROWS_WITH(log_softmax(Tensor::zeros({})), "log_softmax: shape [] has no dimension -1");
  CHECK(softmax(Tensor::zeros({0, 3})).shape() == Shape{0, 3});
  CHECK(softmax(Tensor::zeros({3, 0})).shape() == Shape{3, 0});
}

}  // namespace
}  // namespace tapeformer
