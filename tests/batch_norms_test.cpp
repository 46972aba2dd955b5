// Batch norm: the moments of padded batches, the fused kernels against their formulas, and the
// layer with its running statistics.
#include "layers/batch_norms.h"

#include <cmath>

#include "autograd/gradcheck.h"
#include "tests/catch.h"
#include "tests/norms.h"

namespace tapeformer {
namespace {

using Inputs = std::vector<Tensor>;

bool is_real(const std::vector<int32_t>& lengths, int64_t b, int64_t t) {
  return lengths.empty() || t < lengths[b];
}
Tensor optional_lengths(const std::vector<int32_t>& lengths) {
  return lengths.empty() ? Tensor{} : lengths_of(lengths);
}

/// {mean, variance} of each channel over the real rows of x [B,T,C], in double.
std::vector<std::vector<double>> moments_of(const Tensor& x, const std::vector<int32_t>& lengths) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  const auto in = values_of(x);
  std::vector<double> mean(C, 0), variance(C, 0);
  double n = 0;
  const auto each = [&](const auto& f) {
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < T; ++t)
        if (is_real(lengths, b, t)) f(&in[(b * T + t) * C]);
  };
  each([&](const double*) { ++n; });
  for (int64_t c = 0; c < C; ++c) {
    each([&](const double* row) { mean[c] += row[c] / n; });
    each([&](const double* row) { variance[c] += std::pow(row[c] - mean[c], 2) / n; });
  }
  return {mean, variance};
}

const std::vector<std::vector<int32_t>> paddings = {{}, {7, 0, 3, 9}, {1, 0, 0, 0}};

TEST_CASE("batch_moments_follow_their_formulas_over_real_rows") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int64_t C : {1, 31, 33, 257})
      for (const int64_t T : {7, 100})
        for (const auto& lengths : paddings) {
          INFO(C << " channels, " << T << " times, " << name_of(dtype));
          const double bound = dtype == DType::f32 ? 1e-5 : 1e-13;
          const Tensor x = affine(random_tensor({4, T, C}, 1, dtype), 1, 2);
          const auto expected = moments_of(x, lengths);
          const Moments centred = batch_moments(x, optional_lengths(lengths));
          CHECK(largest_error(centred.mean, expected[0]) < bound);
          CHECK(largest_error(centred.variance, expected[1]) < bound);
          const Moments plain = batch_moments(x, optional_lengths(lengths), false);
          CHECK_FALSE(plain.mean.defined());
          std::vector<double> squares;  // mean of x^2 = variance + mean^2
          for (int64_t c = 0; c < C; ++c)
            squares.push_back(expected[1][c] + expected[0][c] * expected[0][c]);
          CHECK(largest_error(plain.variance, squares) < bound);
          CHECK(centred.rows == (lengths.empty() ? 4 * T
                                                 : lengths[1] + lengths[2] + lengths[0] +
                                                       std::min<int64_t>(T, lengths[3])));
        }
}

TEST_CASE("channels_far_from_zero_keep_their_variance") {
  for (const double far : {1e4, 1e5}) {
    const Tensor x = affine(random_tensor({8, 300, 33}, 1, DType::f32), 1, far);
    const auto expected = moments_of(x, {});
    const Moments moments = batch_moments(x, {});
    for (int64_t c = 0; c < 33; ++c) {
      CHECK(moments.mean.data<float>()[c] == Approx(expected[0][c]).epsilon(1e-7));
      CHECK(moments.variance.data<float>()[c] == Approx(expected[1][c]).epsilon(1e-5));
    }
  }
}

TEST_CASE("padding_does_not_reach_the_moments_even_as_nan") {
  const Tensor x = random_tensor({2, 5, 3}, 1), poisoned = x.clone();
  poisoned.view({10, 3}).rows(2, 5).fill(NAN);
  const Moments moments = batch_moments(poisoned, lengths_of({2, 5}));
  CHECK(same_bits(moments.mean, batch_moments(x, lengths_of({2, 5})).mean));
  CHECK(same_bits(moments.variance, batch_moments(x, lengths_of({2, 5})).variance));
}

/// Batch norm from single operations: x [B,T,C], mask [B,T,1] of ones and zeros.
Tensor composed(const Inputs& in, const Tensor& mask, bool centred) {
  const Tensor& x = in[0];
  const double n = sum(mask).item();
  const auto mean_of = [&](const Tensor& v) { return sum(sum(v * mask, 0), 0) / n; };
  const Tensor mean = centred ? mean_of(x) : Tensor::zeros({x.dim(2)}, x.dtype());
  const Tensor variance = mean_of((x - mean) * (x - mean));
  return in[1] * ((x - mean) * pow(variance + 0.1, -0.5)) + in[2];
}
Tensor fused(const Inputs& in, const Tensor& lengths, bool centred) {
  return batch_norm(in[0], lengths, batch_moments(in[0], lengths, centred), false, in[1], in[2],
                    0.1);
}

/// The output and the gradients of all inputs.
Inputs run(const std::function<Tensor(const Inputs&)>& f, const Inputs& inputs) {
  Inputs leaves;
  for (const Tensor& input : inputs) leaves.push_back(requires_gradient(input.detach()));
  Tape tape;
  const Tensor y = f(leaves), dy = random_tensor(y.shape(), 9, y.dtype());
  tape.backward_from({&y, 1}, {&dy, 1});
  Inputs results = {y};
  for (const Tensor& leaf : leaves) results.push_back(gradient(leaf));
  return results;
}

TEST_CASE("fused_batch_norm_equals_the_composed_one") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int64_t C : {1, 31, 33, 257})
      for (const auto& lengths : paddings)
        for (const bool centred : {true, false}) {
          INFO(C << " channels, " << name_of(dtype) << ", centred " << centred);
          const Inputs inputs = {random_tensor({4, 50, C}, 1, dtype), random_tensor({C}, 2, dtype),
                                 random_tensor({C}, 3, dtype)};
          const Tensor mask = Tensor::full({4, 50, 1}, 1, dtype);
          for (int64_t row = 0; row < 200; ++row)
            if (!is_real(lengths, row / 50, row % 50)) mask.view({200}).rows(row, row + 1).fill(0);
          const Tensor given = optional_lengths(lengths);
          const Inputs a = run([&](const Inputs& in) { return fused(in, given, centred); }, inputs);
          const Inputs b =
              run([&](const Inputs& in) { return composed(in, mask, centred); }, inputs);
          for (size_t i = 0; i < a.size(); ++i)
            CHECK(largest_error(a[i], b[i]) < (dtype == DType::f32 ? 1e-4 : 1e-11));
        }
}

TEST_CASE("gradients_of_batch_norm_are_right_whatever_is_given") {
  const Inputs all = {random_tensor({3, 4, 5}, 1), random_tensor({5}, 2), random_tensor({5}, 3)};
  const Moments running = {random_tensor({5}, 4), uniform_tensor({5}, 0.5, 2, 5), 0};
  for (const Tensor& lengths : {Tensor{}, lengths_of({4, 1, 0})})
    for (const size_t count : {1, 2, 3}) {
      const Inputs inputs(all.begin(), all.begin() + count);
      const auto norm = [&](const Inputs& in, const Moments& moments, bool constant) {
        return batch_norm(in[0], lengths, moments, constant, count > 1 ? in[1] : Tensor{},
                          count > 2 ? in[2] : Tensor{}, 0.1);
      };
      const auto moving = [&](const Inputs& in) {
        return norm(in, batch_moments(in[0], lengths), false);
      };
      const auto constant = [&](const Inputs& in) { return norm(in, running, true); };
      CHECK(gradcheck(moving, inputs));
      CHECK(gradcheck(constant, inputs));
    }
  const auto twice = [](const Inputs& in) {
    return batch_norm(in[0], {}, batch_moments(in[0], {}), false, in[1], in[1], 0.1);
  };
  CHECK(gradcheck(twice, {all[0], all[1]}));
}

TEST_CASE("batch_norm_says_what_does_not_fit") {
  const Tensor x = Tensor::zeros({2, 3, 4});
  CHECK_THROWS_WITH(batch_moments(Tensor::zeros({3, 4}), {}),
                    "batch_moments: needs x [B, T, C], got [3, 4]");
  CHECK_THROWS_WITH(batch_moments(x, lengths_of({1, 2, 3})),
                    ContainsSubstring("lengths must be i32 [2]"));
  CHECK_THROWS_WITH(batch_moments(x, Tensor::zeros({2})), ContainsSubstring("got f32 [2]"));
  CHECK_THROWS_WITH(batch_moments(x, lengths_of({0, -1})),
                    ContainsSubstring("no row of x [2, 3, 4] is left"));
  const Moments moments = batch_moments(x, {});
  CHECK_THROWS_WITH(batch_norm(x, {}, moments, false, Tensor::zeros({3}), {}),
                    "batch_norm: gamma must be [4] beside x [2, 3, 4], got [3]");
  CHECK_THROWS_WITH(batch_norm(x, {}, {{}, Tensor::zeros({3}), 6}, false, {}, {}),
                    ContainsSubstring("the variance must be [4]"));
}

// ---------------------------------------------------------------- the layer

/// The real rows of x [B,T,C], one after the other: [1, n, C].
Tensor packed(const Tensor& x, const std::vector<int32_t>& lengths) {
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < x.dim(0); ++b)
    rows.push_back(slice(slice(x, 0, b, b + 1), 1, 0, lengths[b]));
  return concat(rows, 1);
}
/// x with `more` rows of other numbers after each sample.
Tensor repadded(const Tensor& x, int64_t more, double padding) {
  return concat({x, Tensor::full({x.dim(0), more, x.dim(2)}, padding, x.dtype())}, 1);
}

TEST_CASE("masked_batch_norm_of_padded_input_equals_that_of_packed_input") {
  const std::vector<int32_t> lengths = {5, 2, 4};
  const Tensor x = random_tensor({3, 5, 8}, 1, DType::f32);
  const Tensor some = random_tensor({3, 5, 8}, 2, DType::f32);
  const Tensor padding =
      Tensor::from<int32_t>({0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1}, {3, 5, 1});
  const Tensor dy = masked_fill(some, padding, 0);  // no loss looks at padding
  const auto norm = random_norm("batchnorm", 8, DType::f32);
  const auto other = random_norm("batchnorm", 8, DType::f32);
  const NormPass with = pass_of(*norm, x, dy, training_context(lengths_of(lengths)));
  const NormPass without =
      pass_of(*other, packed(x, lengths), packed(dy, lengths), training_context());
  CHECK(largest_error(packed(with.y, lengths), without.y) < 1e-6);
  CHECK(largest_error(packed(with.dx, lengths), without.dx) < 1e-6);
  for (size_t i = 0; i < 2; ++i)
    CHECK(largest_error(with.gradients[i], without.gradients[i]) < 2e-6);
  for (size_t i = 0; i < 2; ++i)
    CHECK(largest_error(buffers_of(*norm)[i], buffers_of(*other)[i]) < 1e-6);
}

TEST_CASE("padding_longer_changes_unmasked_batch_norm_only") {
  const std::vector<int32_t> lengths = {5, 2, 4};
  const Tensor x = random_tensor({3, 5, 8}, 1), dy = random_tensor({3, 5, 8}, 2);
  for (const auto& [name, changes] :
       {std::pair{"batchnorm", false}, {"batchnorm-unmasked", true}, {"powernorm-v", false}}) {
    INFO(name);
    const auto norm = random_norm(name, 8), other = random_norm(name, 8);
    const NormPass shorter = pass_of(*norm, x, dy, training_context(lengths_of(lengths)));
    const NormPass longer = pass_of(*other, repadded(x, 6, 3), repadded(dy, 6, 0),
                                    training_context(lengths_of(lengths)));
    const auto differ = [](const Tensor& a, const Tensor& b) { return largest_error(a, b) > 1e-6; };
    CHECK(differ(slice(longer.y, 1, 0, 5), shorter.y) == changes);
    CHECK(differ(slice(longer.dx, 1, 0, 5), shorter.dx) == changes);
    CHECK(differ(longer.gradients[0], shorter.gradients[0]) == changes);
    CHECK(differ(buffers_of(*other)[0], buffers_of(*norm)[0]) == changes);
  }
}

TEST_CASE("running_statistics_follow_their_formula_and_serve_evaluation") {
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {4, 1}}) {
    BatchNorm norm(3);
    convert(norm, DType::f64);
    const Tensor given = optional_lengths(lengths);
    const double n = lengths.empty() ? 8 : 5;
    std::vector<double> mean(3, 0), variance(3, 1);
    for (uint64_t step = 1; step <= 4; ++step) {
      const Tensor x = random_tensor({2, 4, 3}, step);
      norm.forward(x, training_context(given));
      const auto moments = moments_of(x, lengths);
      for (int c = 0; c < 3; ++c) {
        mean[c] = 0.9 * mean[c] + 0.1 * moments[0][c];
        variance[c] = 0.9 * variance[c] + 0.1 * moments[1][c] * n / (n - 1);
      }
      CHECK(largest_error(norm.running_mean, mean) < 1e-14);
      CHECK(largest_error(norm.running_variance, variance) < 1e-14);
      CHECK(largest_error(norm.batch.mean, moments[0]) < 1e-14);
      CHECK(largest_error(norm.batch.variance, moments[1]) < 1e-14);
      CHECK(norm.batch.rows == n);
    }
    const Tensor x = random_tensor({2, 4, 3}, 9);
    std::vector<double> expected;
    for (int i = 0; i < 24; ++i)
      expected.push_back((values_of(x)[i] - mean[i % 3]) / std::sqrt(variance[i % 3] + 1e-5));
    CHECK(largest_error(norm.forward(x, evaluation_context(given)), expected) < 1e-13);
  }
}

TEST_CASE("an_update_from_one_row_divides_by_nothing") {
  BatchNorm norm(2);
  norm.update({Tensor::full({2}, 3), Tensor::full({2}, 5), 1}, 0.5);
  CHECK(values_of(norm.running_mean) == std::vector<double>{1.5, 1.5});
  CHECK(values_of(norm.running_variance) == std::vector<double>{3, 3});
}

TEST_CASE("batch_norm_of_one_token_is_refused_in_training_alone") {
  BatchNorm masked(4), unmasked(4, false);
  const Tensor one = Tensor::zeros({1, 1, 4}), padded = Tensor::zeros({2, 3, 4});
  const std::string why = "batch norm: one token has no variance";
  CHECK_THROWS_WITH(masked.forward(one, training_context()), ContainsSubstring(why));
  CHECK_THROWS_WITH(masked.forward(padded, training_context(lengths_of({0, 1}))),
                    ContainsSubstring(why) && ContainsSubstring("layernorm"));
  CHECK_THROWS_WITH(unmasked.forward(one, training_context()), ContainsSubstring(why));
  CHECK(values_of(masked.running_variance) == std::vector<double>(4, 1));
  CHECK_NOTHROW(unmasked.forward(padded, training_context(lengths_of({0, 1}))));
  CHECK_NOTHROW(masked.forward(one, evaluation_context()));
}

TEST_CASE("running_statistics_change_once_a_step_whatever_runs_around_it") {
  const auto trace_of = [](bool disturbed) {
    const auto norm = random_norm("batchnorm", 4);
    std::vector<Tensor> trace;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const Tensor x = random_tensor({2, 3, 4}, seed), dy = random_tensor({2, 3, 4}, 10 + seed);
      if (disturbed) {
        norm->forward(random_tensor({2, 3, 4}, 20), evaluation_context());
        pass_of(*norm, random_tensor({2, 3, 4}, 21), dy, looking_context());
      }
      Recomputed recomputed(*norm, disturbed);
      const auto pass = pass_of(recomputed, x, dy, training_context(lengths_of({3, 2}))).all();
      for (const auto& results : {pass, buffers_of(*norm)})
        for (const Tensor& result : results) trace.push_back(result.clone());
    }
    return trace;
  };
  CHECK(all_same_bits(trace_of(true), trace_of(false)));
}

TEST_CASE("an_update_does_not_change_what_backward_still_needs") {
  for (const bool training : {true, false}) {
    const Tensor given = random_tensor({2, 3, 4}, 1), dy = random_tensor({2, 3, 4}, 2);
    const NormContext context = training ? training_context() : evaluation_context();
    const auto dx_with = [&](bool update_between) {
      const auto norm = random_norm("batchnorm", 4);
      const Tensor x = requires_gradient(given.detach());
      Tape tape;
      const Tensor y = norm->forward(x, context);
      if (update_between) norm->forward(random_tensor({2, 3, 4}, 3), training_context());
      tape.backward_from({&y, 1}, {&dy, 1});
      return gradient(x);
    };
    CHECK(same_bits(dx_with(true), dx_with(false)));
  }
}

}  // namespace
}  // namespace tapeformer
