// Layer norm and RMS norm, alone and fused with the residual add, against their formulas.
#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/random_tensor.h"

namespace tapeformer {
namespace {

using Inputs = std::vector<Tensor>;
constexpr int64_t sizes[] = {1, 31, 33, 257};

// gamma (x - mu) / sqrt(v + epsilon) + beta in double; RMS norm where not centred.
std::vector<double> formula(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                            double epsilon, bool centred) {
  const int64_t C = x.dim(-1);
  const std::vector<double> in = values_of(x);
  const std::vector<double> gain = gamma.defined() ? values_of(gamma) : std::vector<double>(C, 1);
  const std::vector<double> shift = beta.defined() ? values_of(beta) : std::vector<double>(C, 0);
  std::vector<double> out;
  for (size_t row = 0; row < in.size(); row += C) {
    double mu = 0, v = 0;
    for (int64_t i = 0; centred && i < C; ++i) mu += in[row + i] / C;
    for (int64_t i = 0; i < C; ++i) v += (in[row + i] - mu) * (in[row + i] - mu) / C;
    for (int64_t i = 0; i < C; ++i)
      out.push_back(gain[i] * (in[row + i] - mu) / std::sqrt(v + epsilon) + shift[i]);
  }
  return out;
}

TEST_CASE("norms_follow_their_formulas") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double bound = dtype == DType::f32 ? 3e-6 : 1e-13;
    for (const int64_t C : sizes) {
      const Tensor x = random_tensor({3, 2, C}, 1, dtype), gamma = random_tensor({C}, 2, dtype);
      const Tensor beta = random_tensor({C}, 3, dtype);
      CHECK(largest_error(layer_norm(x, gamma, beta, 1e-3), formula(x, gamma, beta, 1e-3, true)) <
            bound);
      CHECK(largest_error(layer_norm(x, gamma, {}), formula(x, gamma, {}, 1e-5, true)) < bound);
      CHECK(largest_error(layer_norm(x, {}, {}), formula(x, {}, {}, 1e-5, true)) < bound);
      CHECK(largest_error(rms_norm(x, gamma, 1e-3), formula(x, gamma, {}, 1e-3, false)) < bound);
      CHECK(largest_error(rms_norm(x, {}), formula(x, {}, {}, 1e-5, false)) < bound);
    }
  }
}

TEST_CASE("rows_far_from_zero_keep_their_variance") {
  for (const int64_t C : {128, 4096}) {
    const Tensor x = affine(random_tensor({8, C}, 1, DType::f32), 1, 1e4);
    // Numbers near 1e4 are 1e-3 apart, so the mean that is subtracted may be off by half of that.
    CHECK(largest_error(layer_norm(x, {}, {}), formula(x, {}, {}, 1e-5, true)) < 1e-3);
    const Tensor mean = x.empty_like({8}), rstd = x.empty_like({8});
    kernels::layer_norm_forward(x, Tensor{}, 1.0, Tensor{}, Tensor{}, 1e-5, Tensor{},
                                x.empty_like(), mean, rstd);
    const std::vector<double> in = values_of(x);
    for (int64_t n = 0; n < 8; ++n) {
      double mu = 0, v = 0;
      for (int64_t i = 0; i < C; ++i) mu += in[n * C + i] / C;
      for (int64_t i = 0; i < C; ++i) v += std::pow(in[n * C + i] - mu, 2) / C;
      CHECK(mean.data<float>()[n] == Approx(mu).epsilon(2e-7));
      CHECK(rstd.data<float>()[n] == Approx(1 / std::sqrt(v)).epsilon(1e-4));
    }
  }
}

// The sum of squared distances from any one element, corrected for the mean, would cancel here.
TEST_CASE("a_first_element_far_from_the_others_does_not_harm_the_variance") {
  constexpr int64_t C = 4096;
  const Tensor x = random_tensor({3, C}, 1, DType::f32);
  for (int64_t n = 0; n < 3; ++n) x.data<float>()[n * C] = 1e6f;
  const Tensor zero = Tensor::zeros(x.shape());
  const std::vector<double> expected = formula(x, {}, {}, 1e-5, true);
  CHECK(largest_error(layer_norm(x, {}, {}), expected) < 1e-5);
  CHECK(largest_error(add_layer_norm(zero, x, 1, {}, {}).norm, expected) < 1e-5);
}

TEST_CASE("fused_norms_keep_the_variance_of_sums_far_from_zero") {
  const Tensor residual = affine(random_tensor({8, 4096}, 1, DType::f32), 1, 1e4);
  const Tensor x = random_tensor({8, 4096}, 2, DType::f32);
  const SumAndNorm out = add_layer_norm(residual, x, 1, {}, {});
  CHECK(largest_error(out.norm, formula(out.sum, {}, {}, 1e-5, true)) < 1e-3);
}

// Large tensors are fetched ahead, small ones are not.
TEST_CASE("a_row_gives_the_same_bits_alone_and_among_many") {
  for (const int64_t C : {33, 1000}) {
    const int64_t N = 400'000 / C;
    const Inputs all = {random_tensor({N, C}, 1, DType::f32), random_tensor({N, C}, 2, DType::f32)};
    const Tensor gamma = random_tensor({C}, 3, DType::f32),
                 dy = random_tensor({N, C}, 4, DType::f32);
    const auto norms_of = [&](int64_t begin, int64_t end) {
      const auto rows = [&](const Tensor& x) { return slice(x, 0, begin, end).detach(); };
      std::vector<Tensor> results;
      for (const bool centred : {true, false}) {
        const Tensor residual = requires_gradient(rows(all[0]));
        Tape tape;
        const SumAndNorm out = centred ? add_layer_norm(residual, rows(all[1]), 0.7, gamma, {})
                                       : add_rms_norm(residual, rows(all[1]), 0.7, gamma);
        const Tensor alone = centred ? layer_norm(residual, gamma, {}) : rms_norm(residual, gamma);
        const Tensor outputs[] = {out.norm, alone}, from[] = {rows(dy), rows(dy)};
        tape.backward_from(outputs, from);
        results.insert(results.end(), {out.sum, out.norm, alone, gradient(residual)});
      }
      return results;
    };
    const std::vector<Tensor> many = norms_of(0, N), one = norms_of(N - 2, N - 1);
    for (size_t i = 0; i < many.size(); ++i)
      CHECK(same_bits(slice(many[i], 0, N - 2, N - 1), one[i]));
  }
}

TEST_CASE("a_row_of_zeros_gives_the_shift_and_finite_gradients") {
  const Tensor x = requires_gradient(Tensor::zeros({1, 5}));
  const Tensor gamma = requires_gradient(random_tensor({5}, 1, DType::f32));
  const Tensor beta = requires_gradient(random_tensor({5}, 2, DType::f32));
  const Tensor dy = random_tensor({1, 5}, 3, DType::f32);
  {
    Tape tape;
    const Tensor y = layer_norm(x, gamma, beta);
    CHECK(values_of(y) == values_of(beta));
    tape.backward_from({&y, 1}, {&dy, 1});
  }
  double mean_h = 0;
  for (int i = 0; i < 5; ++i) mean_h += values_of(gamma)[i] * values_of(dy)[i] / 5;
  for (int i = 0; i < 5; ++i)
    CHECK(values_of(gradient(x))[i] ==
          Approx((values_of(gamma)[i] * values_of(dy)[i] - mean_h) / std::sqrt(1e-5)));
  CHECK(values_of(gradient(gamma)) == std::vector<double>(5, 0));
  CHECK(values_of(gradient(beta)) == values_of(dy));

  zero_gradient(x);
  Tape tape;
  const Tensor y = rms_norm(x, {});
  CHECK(values_of(y) == std::vector<double>(5, 0));
  tape.backward_from({&y, 1}, {&dy, 1});
  for (int i = 0; i < 5; ++i)
    CHECK(values_of(gradient(x))[i] == Approx(values_of(dy)[i] / std::sqrt(1e-5)));
}

TEST_CASE("gradients_of_norms_are_right") {
  for (const int64_t C : {1, 31, 33}) {
    const Inputs inputs = {random_tensor({5, C}, 1), random_tensor({C}, 2), random_tensor({C}, 3)};
    const Inputs all[] = {inputs, {inputs[0], inputs[1]}, {inputs[0]}};
    for (const Inputs& given : all) {
      const auto layer = [](const Inputs& in) {
        return layer_norm(in[0], in.size() > 1 ? in[1] : Tensor{}, in.size() > 2 ? in[2] : Tensor{},
                          0.1);
      };
      const auto rms = [](const Inputs& in) {
        return rms_norm(in[0], in.size() > 1 ? in[1] : Tensor{}, 0.1);
      };
      const GradcheckResult of_layer = gradcheck(layer, given);
      const GradcheckResult of_rms = given.size() < 3 ? gradcheck(rms, given) : GradcheckResult{};
      INFO(C << " channels, " << given.size() << " inputs: " << of_layer.message << of_rms.message);
      CHECK(of_layer);
      CHECK(of_rms);
    }
  }
  // Only the shift: nothing flows to the others.
  const auto shift = [](const Inputs& in) {
    return layer_norm(random_tensor({4, 7}, 1), {}, in[0], 0.1);
  };
  CHECK(gradcheck(shift, {random_tensor({7}, 2)}));
}

TEST_CASE("gradients_of_fused_norms_are_right") {
  for (const double alpha : {1.0, 0.7})
    for (const int64_t C : {1, 31, 33}) {
      const Inputs inputs = {random_tensor({5, C}, 1), random_tensor({5, C}, 2),
                             random_tensor({C}, 3), random_tensor({C}, 4)};
      const auto layer = [alpha](const Inputs& in) {
        const SumAndNorm out = add_layer_norm(in[0], in[1], alpha, in[2], in[3], 0.1);
        return concat({out.sum, out.norm}, 0);
      };
      const auto rms = [alpha](const Inputs& in) {
        const SumAndNorm out = add_rms_norm(in[0], in[1], alpha, in[2], 0.1);
        return concat({out.sum, out.norm}, 0);
      };
      const GradcheckResult of_layer = gradcheck(layer, inputs);
      const GradcheckResult of_rms = gradcheck(rms, {inputs[0], inputs[1], inputs[2]});
      INFO(C << " channels, alpha " << alpha << ": " << of_layer.message << of_rms.message);
      CHECK(of_layer);
      CHECK(of_rms);
    }
}

TEST_CASE("fused_norms_pass_on_what_reaches_only_one_output") {
  const Inputs inputs = {random_tensor({3, 7}, 1), random_tensor({3, 7}, 2), random_tensor({7}, 3)};
  for (const double alpha : {1.0, -0.5}) {
    CHECK(gradcheck(
        [alpha](const Inputs& in) { return add_rms_norm(in[0], in[1], alpha, in[2]).norm; },
        inputs));
    CHECK(gradcheck(
        [alpha](const Inputs& in) { return add_rms_norm(in[0], in[1], alpha, in[2]).sum; },
        {inputs[0], inputs[1], inputs[2]}));
    CHECK(gradcheck(
        [alpha](const Inputs& in) { return add_layer_norm(in[0], in[1], alpha, in[2], {}).norm; },
        inputs));
  }
}

TEST_CASE("one_tensor_may_be_several_inputs_of_a_norm") {
  const Inputs rows = {random_tensor({3, 7}, 1)}, channels = {random_tensor({7}, 1)};
  CHECK(gradcheck([](const Inputs& in) { return layer_norm(in[0], in[0], in[0], 0.1); }, channels));
  CHECK(gradcheck([](const Inputs& in) { return rms_norm(in[0], in[0], 0.1); }, channels));
  CHECK(gradcheck(
      [](const Inputs& in) {
        const SumAndNorm out = add_layer_norm(in[0], in[0], 0.3, {}, {}, 0.1);
        return out.sum * out.norm;
      },
      rows));
  CHECK(gradcheck([](const Inputs& in) { return layer_norm(in[0], in[1], in[1], 0.1); },
                  {rows[0], channels[0]}));
  for (const double alpha : {1.0, 0.3}) {
    CHECK(gradcheck(
        [=](const Inputs& in) {
          const SumAndNorm out = add_layer_norm(in[0], in[0], alpha, in[0], in[0], 0.1);
          return out.sum * out.norm;
        },
        channels));
    CHECK(gradcheck(
        [=](const Inputs& in) {
          const Tensor constant = random_tensor({7}, 5);
          return add_rms_norm(constant, in[0], alpha, in[0], 0.1).norm;
        },
        channels));
  }
}

// The gradient of the sum goes to x and residual in one buffer; both get more from elsewhere.
TEST_CASE("the_gradient_that_both_summands_share_is_not_overwritten") {
  CHECK(gradcheck(
      [](const Inputs& in) {
        const Tensor residual = affine(in[0], 2, 0), x = affine(in[1], 3, 0);
        const Tensor before = x * residual;
        const SumAndNorm out = add_layer_norm(residual, x, 1, {}, {}, 0.1);
        return before + out.sum + out.norm * x;
      },
      {random_tensor({3, 7}, 1), random_tensor({3, 7}, 2)}));
}

struct Run {
  Tensor sum, norm;
  Inputs gradients;
};
Run run(const Inputs& inputs, const std::function<SumAndNorm(const Inputs&)>& f) {
  Inputs leaves;
  for (const Tensor& input : inputs) leaves.push_back(requires_gradient(input.detach()));
  Tape tape;
  const SumAndNorm out = f(leaves);
  const Tensor outputs[] = {out.sum, out.norm};
  const Tensor from[] = {random_tensor(out.sum.shape(), 8, out.sum.dtype()),
                         random_tensor(out.sum.shape(), 9, out.sum.dtype())};
  tape.backward_from(outputs, from);
  Run result{out.sum, out.norm, {}};
  for (const Tensor& leaf : leaves) result.gradients.push_back(gradient(leaf));
  return result;
}

TEST_CASE("fused_norms_equal_the_composed_ones") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double alpha : {1.0, 0.7})
      for (const int64_t C : sizes) {
        const double bound = dtype == DType::f32 ? 1e-5 : 1e-13;
        const Inputs inputs = {random_tensor({37, C}, 1, dtype), random_tensor({37, C}, 2, dtype),
                               random_tensor({C}, 3, dtype), random_tensor({C}, 4, dtype)};
        const auto check_equal = [&](const Run& fused, const Run& composed) {
          CHECK(largest_error(fused.sum, composed.sum) < bound);
          CHECK(largest_error(fused.norm, composed.norm) < bound);
          for (size_t i = 0; i < inputs.size(); ++i)
            if (composed.gradients[i].defined())
              CHECK(largest_error(fused.gradients[i], composed.gradients[i]) < bound);
        };
        check_equal(run(inputs,
                        [&](const Inputs& in) {
                          return add_layer_norm(in[0], in[1], alpha, in[2], in[3], 0.1);
                        }),
                    run(inputs, [&](const Inputs& in) {
                      const Tensor sum = affine(in[0], alpha, 0) + in[1];
                      return SumAndNorm{sum, layer_norm(sum, in[2], in[3], 0.1)};
                    }));
        check_equal(
            run(inputs,
                [&](const Inputs& in) { return add_rms_norm(in[0], in[1], alpha, in[2], 0.1); }),
            run(inputs, [&](const Inputs& in) {
              const Tensor sum = affine(in[0], alpha, 0) + in[1];
              return SumAndNorm{sum, rms_norm(sum, in[2], 0.1)};
            }));
      }
}

TEST_CASE("norms_give_the_same_bits_on_any_number_of_threads") {
  const Shape shape{701, 257};
  const Inputs inputs = {random_tensor(shape, 1, DType::f32), random_tensor(shape, 2, DType::f32),
                         random_tensor({257}, 3, DType::f32), random_tensor({257}, 4, DType::f32)};
  CHECK(threads_do_not_matter([&] {
    Run layer = run(
        inputs, [](const Inputs& in) { return add_layer_norm(in[0], in[1], 0.7, in[2], in[3]); });
    const Run rms = run({inputs[0], inputs[1], inputs[2]},
                        [](const Inputs& in) { return add_rms_norm(in[0], in[1], 0.7, in[2]); });
    Inputs results = {layer.sum, layer.norm, rms.sum, rms.norm};
    results.insert(results.end(), layer.gradients.begin(), layer.gradients.end());
    results.insert(results.end(), rms.gradients.begin(), rms.gradients.end());
    return results;
  }));
}

TEST_CASE("norms_of_no_rows_are_empty_and_have_zero_parameter_gradients") {
  const Tensor gamma = requires_gradient(Tensor::full({5}, 2));
  Tape tape;
  const Tensor loss = sum(layer_norm(Tensor::zeros({0, 5}), gamma, {}));
  tape.backward(loss);
  CHECK(values_of(gradient(gamma)) == std::vector<double>(5, 0));
}

TEST_CASE("norms_say_what_does_not_fit") {
  const Tensor x = Tensor::zeros({2, 4});
  CHECK_THROWS_WITH(layer_norm(x, Tensor::zeros({3}), {}),
                    "layer_norm: gamma must be [4] beside x [2, 4], got [3]");
  CHECK_THROWS_WITH(layer_norm(x, {}, Tensor::zeros({4}, DType::f64)),
                    "layer_norm: dtypes differ: x is f32, beta is f64; convert one with cast(x, "
                    "DType::f32)");
  CHECK_THROWS_WITH(rms_norm(x, {}, -1.0), "rms_norm: epsilon must not be negative, got -1");
  CHECK_THROWS_WITH(rms_norm(Tensor::zeros({}), {}),
                    "rms_norm: needs at least one channel in the last dimension, got shape []");
  CHECK_THROWS_WITH(add_rms_norm(Tensor::zeros({3, 4}), x, 1, {}),
                    "add_rms_norm: shapes differ: residual [3, 4], x [2, 4]");
  CHECK_THROWS_WITH(layer_norm(Tensor::zeros({2, 4}, DType::i32), {}, {}),
                    ContainsSubstring("layer_norm: needs floating-point numbers, got i32"));
}

}  // namespace
}  // namespace tapeformer
