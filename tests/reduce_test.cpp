// Sums, means, maxima.
#include <cmath>
#include <limits>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/cpu/parallel.h"
#include "core/threads.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

using Inputs = std::vector<Tensor>;

// The sum over dim in the plainest way.
std::vector<double> plain_sum(const Tensor& x, int dim) {
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < x.rank(); ++i) (i < dim ? outer : inner) *= i == dim ? 1 : x.dim(i);
  std::vector<double> sums(outer * inner, 0.0);
  for (int64_t i = 0; i < x.numel(); ++i)
    sums[i / (x.dim(dim) * inner) * inner + i % inner] += x.data<double>()[i];
  return sums;
}

}  // namespace

TEST_CASE("sums_over_each_dimension_are_right") {
  for (const Shape& shape : {Shape{3, 5, 7}, Shape{1, 31, 33}, Shape{2, 1000, 3}, Shape{9000, 1, 2},
                             Shape{2, 2, 9001}, Shape{3, 300, 600}}) {
    const Tensor x = random_tensor(shape, 1);
    for (int dim = 0; dim < 3; ++dim) {
      const auto expected = plain_sum(x, dim);
      const Tensor kept = sum(x, dim, true), removed = sum(x, dim - 3), average = mean(x, dim);
      CHECK(kept.shape() == shape.with(dim, 1));
      CHECK(removed.rank() == 2);
      REQUIRE(removed.numel() == static_cast<int64_t>(expected.size()));
      for (size_t i = 0; i < expected.size(); ++i) {
        REQUIRE(kept.data<double>()[i] == Approx(expected[i]).margin(1e-10));
        REQUIRE(removed.data<double>()[i] == Approx(expected[i]).margin(1e-10));
        REQUIRE(average.data<double>()[i] == Approx(expected[i] / shape[dim]).margin(1e-10));
      }
    }
  }
}

TEST_CASE("sum_and_mean_of_all_elements") {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(sum(x).shape() == Shape{});
  CHECK(sum(x).item() == 21);
  CHECK(mean(x).item() == 3.5);
  CHECK(sum(Tensor::full({}, 4)).item() == 4);
  CHECK(sum(Tensor::zeros({0, 3})).item() == 0);
  CHECK(sum(Tensor::zeros({0, 3}), 0).to_vector<float>() == std::vector<float>{0, 0, 0});
}

TEST_CASE("long_sums_keep_float_accuracy") {
  // One after the other in f32, 0.1 summed ten million times is off by 8 %.
  // In chunks, no running sum has more than 256 terms, each of which errs by at most 2^-24.
  const double bound = 256 * std::exp2(-24);
  const Tensor x = Tensor::full({10000000}, 0.1);
  CHECK(sum(x).item() == Approx(1e6).epsilon(bound));
  CHECK(mean(x).item() == Approx(0.1).epsilon(bound));
  CHECK(sum(x.view({2500000, 4}), 0).to_vector<float>()[3] == Approx(2.5e5).epsilon(bound));
}

TEST_CASE("reduction_gradients") {
  for (const Shape& shape : {Shape{1, 31}, Shape{33, 2}, Shape{2, 3, 5}})
    for (int dim = -1; dim < shape.rank(); ++dim)
      for (const bool keep_dim : {false, true}) {
        const Tensor x = random_tensor(shape, 3);
        CHECK(gradcheck([=](const Inputs& in) { return sum(in[0], dim, keep_dim); }, {x}));
        CHECK(gradcheck([=](const Inputs& in) { return mean(in[0], dim, keep_dim); }, {x}));
        CHECK(gradcheck([=](const Inputs& in) { return max(in[0], dim, keep_dim); }, {x}));
      }
  const Tensor x = random_tensor({3, 31}, 4);
  CHECK(gradcheck([](const Inputs& in) { return sum(in[0]); }, {x}));
  CHECK(gradcheck([](const Inputs& in) { return mean(in[0] * in[0]); }, {x}));
  CHECK(gradcheck([](const Inputs& in) { return max(in[0]) * sum(in[0]); }, {x}));
}

TEST_CASE("large_sum_gradients_reach_every_element") {
  const Tensor x = requires_gradient(Tensor::zeros({5, 300, 33}));
  for (int dim = 0; dim < 3; ++dim) {
    zero_gradient(x);
    Tape tape;
    const Tensor y = mean(x, dim);
    const Tensor weight = random_tensor(y.shape(), dim, DType::f32);
    tape.backward(sum(y * weight));
    const Tensor expected =
        Tensor::zeros(x.shape()) + reshape(weight * (1.0 / x.dim(dim)), x.shape().with(dim, 1));
    CHECK(gradient(x).to_vector<float>() == expected.to_vector<float>());
  }
}

TEST_CASE("max_takes_the_first_of_equals_and_gives_it_the_gradient") {
  const Tensor x = requires_gradient(Tensor::from<float>({1, 7, 7, 3, 2, 3}, {2, 3}));
  Tape tape;
  const Tensor y = max(x, 1);
  CHECK(y.to_vector<float>() == std::vector<float>{7, 3});
  tape.backward(sum(y));
  CHECK(gradient(x).to_vector<float>() == std::vector<float>{0, 1, 0, 1, 0, 0});
}

TEST_CASE("max_over_other_dimensions_and_over_all") {
  const Tensor x = random_tensor({3, 50, 7}, 1, DType::f32);
  const Tensor y = max(x, 1);
  for (int64_t o = 0; o < 3; ++o)
    for (int64_t j = 0; j < 7; ++j) {
      float best = -100;
      for (int64_t i = 0; i < 50; ++i) best = std::max(best, x.data<float>()[(o * 50 + i) * 7 + j]);
      REQUIRE(y.data<float>()[o * 7 + j] == best);
    }
  const Tensor large = random_tensor({100003}, 2, DType::f32);
  const auto values = large.to_vector<float>();
  CHECK(max(large).item() == *std::max_element(values.begin(), values.end()));
}

TEST_CASE("max_lets_a_nan_win") {
  const float nan = std::nanf("");
  const Tensor x = Tensor::from<float>({1, nan, 5, nan, 2, 3}, {2, 3});
  for (const float value : max(x, 1).to_vector<float>()) CHECK(std::isnan(value));
  CHECK(std::isnan(max(x).item()));
  CHECK(max(Tensor::full({3}, -std::numeric_limits<double>::infinity())).item() < 0);
}

TEST_CASE("sum_of_squares_is_accumulated_in_double") {
  const Tensor x = Tensor::full({3000001}, 1e-3), y = Tensor::empty({1});
  kernels::sum_of_squares(x, y);
  CHECK(y.item() == Approx(3000001 * 1e-6).epsilon(1e-6));
}

TEST_CASE("an_error_on_another_thread_reaches_the_caller") {
  const int threads = num_threads();
  set_num_threads(2);
  CHECK_THROWS_WITH(
      cpu::parallel_for(8, true, [](int64_t i) { check(i != 5, "piece ", i, " failed"); }),
      "piece 5 failed");
  set_num_threads(threads);
}

TEST_CASE("reductions_do_not_depend_on_threads") {
  const Tensor x = random_tensor({40, 301, 65}, 1, DType::f32), y = Tensor::empty({1});
  const auto run = [&](int threads) {
    set_num_threads(threads);
    kernels::sum_of_squares(x, y);
    std::vector<std::vector<float>> results{y.to_vector<float>(), sum(x).to_vector<float>()};
    for (int dim = 0; dim < 3; ++dim) results.push_back(sum(x, dim).to_vector<float>());
    return results;
  };
  const int threads = num_threads();
  const auto one = run(1), two = run(2), three = run(3);
  set_num_threads(threads);
  CHECK(one == two);
  CHECK(one == three);
}

TEST_CASE("reduction_mistakes_are_explained") {
  const Tensor x = Tensor::zeros({2, 0});
  CHECK_THROWS_WITH(sum(x, 2), ContainsSubstring("sum: shape [2, 0] has no dimension 2"));
  CHECK_THROWS_WITH(mean(x, -3), ContainsSubstring("mean: shape [2, 0] has no dimension -3"));
  CHECK_THROWS_WITH(max(x, 1), ContainsSubstring("max: no elements to choose from"));
  CHECK_THROWS_WITH(max(x), ContainsSubstring("max: no elements to choose from in shape [2, 0]"));
  CHECK_THROWS_WITH(sum(Tensor::zeros({2}, DType::i32)),
                    ContainsSubstring("sum: needs floating-point numbers, got i32"));
}
