// Embedding, cross-entropy and the vocabulary projection fused with it.
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

// N targets in [0, V), every fifth one ignored (-1).
Tensor some_targets(int64_t N, int32_t V) {
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < N; ++n)
    targets.push_back(n % 5 == 3 ? -1 : static_cast<int32_t>(n * 7 % V));
  return Tensor::from(targets);
}

// -sum_v q_v log p_v in double, averaged over the targets that count.
double formula(const Tensor& logits, const Tensor& targets, double smoothing) {
  const int64_t V = logits.dim(-1);
  const std::vector<double> x = values_of(logits);
  const std::vector<int32_t> target = targets.to_vector<int32_t>();
  double total = 0, count = 0;
  for (size_t n = 0; n < target.size(); ++n) {
    if (target[n] == -1) continue;
    ++count;
    double largest = x[n * V], Z = 0;
    for (int64_t v = 0; v < V; ++v) largest = std::max(largest, x[n * V + v]);
    for (int64_t v = 0; v < V; ++v) Z += std::exp(x[n * V + v] - largest);
    for (int64_t v = 0; v < V; ++v) {
      const double q = (v == target[n] ? 1 - smoothing : 0) + smoothing / V;
      total -= q * (x[n * V + v] - largest - std::log(Z));
    }
  }
  return total / std::max(count, 1.0);
}

TEST_CASE("embedding_takes_rows_of_the_table") {
  const Tensor table = random_tensor({5, 3}, 1, DType::f32);
  const Tensor indices = Tensor::from<int32_t>({4, 0, 4, 2}, {2, 2});
  const Tensor y = embedding(table, indices);
  CHECK(y.shape() == Shape{2, 2, 3});
  for (int n = 0; n < 4; ++n) {
    const int32_t index = indices.data<int32_t>()[n];
    CHECK(same_bits(y.view({4, 3}).rows(n, n + 1), table.rows(index, index + 1)));
  }
}

TEST_CASE("gradient_of_an_embedding_adds_up_over_repeated_indices") {
  const Tensor table = requires_gradient(Tensor::zeros({4, 2}));
  const Tensor indices = Tensor::from<int32_t>({1, 3, 1});
  const Tensor dy = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  for (int round = 1; round <= 2; ++round) {
    Tape tape;
    const Tensor y = embedding(table, indices);
    tape.backward_from({&y, 1}, {&dy, 1});
    std::vector<double> expected = {0, 0, 6, 8, 0, 0, 3, 4};
    for (double& value : expected) value *= round;
    CHECK(values_of(gradient(table)) == expected);
  }
  for (const int64_t C : {1, 31, 33})
    CHECK(gradcheck(
        [](const Inputs& in) {
          return embedding(in[0], Tensor::from<int32_t>({2, 0, 2, 6}));
        },
        {random_tensor({7, C}, 1)}));
}

TEST_CASE("embedding_names_the_index_that_is_outside") {
  const Tensor table = Tensor::zeros({65, 2});
  CHECK_THROWS_WITH(embedding(table, Tensor::from<int32_t>({3, 0, 65})),
                    "embedding: index 65 at position 2 is outside the table of 65 rows");
  CHECK_THROWS_WITH(embedding(table, Tensor::from<int32_t>({-1})),
                    "embedding: index -1 at position 0 is outside the table of 65 rows");
  CHECK_THROWS_WITH(embedding(table, Tensor::zeros({3})),
                    "embedding: indices must be i32, got f32");
  CHECK_THROWS_WITH(embedding(Tensor::zeros({65}), Tensor::from<int32_t>({0})),
                    "embedding: the table must be [V, C], got [65]");
}

TEST_CASE("cross_entropy_follows_its_formula") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double smoothing : {0.0, 0.1, 1.0})
      for (const int32_t V : {1, 2, 31, 33, 65, 1000}) {
        const Tensor logits = affine(random_tensor({13, V}, 1, dtype), 4, 1);
        const Tensor targets = some_targets(13, V);
        const double loss = cross_entropy(logits, targets, {.smoothing = smoothing}).item();
        const double expected = formula(logits, targets, smoothing);
        CHECK(std::abs(loss - expected) < (dtype == DType::f32 ? 2e-6 : 1e-13) * (1 + expected));
      }
}

TEST_CASE("cross_entropy_of_huge_logits_is_finite") {
  const Tensor logits = requires_gradient(Tensor::from<float>({3e4f, -3e4f, 0, 0}, {2, 2}));
  Tape tape;
  const Tensor loss = cross_entropy(logits, Tensor::from<int32_t>({1, 0}));
  CHECK(loss.item() == Approx((6e4 + std::log(2.0)) / 2));
  tape.backward(loss);
  CHECK(largest_error(gradient(logits), {0.5, -0.5, -0.25, 0.25}) < 1e-7);
}

TEST_CASE("gradients_of_cross_entropy_are_right") {
  for (const double smoothing : {0.0, 0.2})
    for (const int32_t V : {1, 31, 33}) {
      const GradcheckResult result = gradcheck(
          [=](const Inputs& in) {
            const Tensor targets = some_targets(6, V).view({2, 3});
            return cross_entropy(in[0], targets, {.smoothing = smoothing});
          },
          {random_tensor({2, 3, V}, 1)});
      INFO(result.message);
      CHECK(result);
    }
}

TEST_CASE("targets_that_are_all_ignored_give_no_loss_and_zero_gradients") {
  const Tensor x = requires_gradient(random_tensor({3, 4}, 1));
  const Tensor weight = requires_gradient(random_tensor({5, 4}, 2));
  const Tensor targets = Tensor::from<int32_t>({9, 9, 9});
  for (const size_t chunk_bytes : {size_t{1}, size_t{1} << 20}) {
    Tape tape;
    const Tensor loss = linear_cross_entropy(x, weight, targets, {.ignore_index = 9}, chunk_bytes) +
                        cross_entropy(matmul(x, weight, false, true), targets, {.ignore_index = 9});
    CHECK(loss.item() == 0);
    tape.backward(loss);
    CHECK(values_of(gradient(x)) == std::vector<double>(12, 0));
    CHECK(values_of(gradient(weight)) == std::vector<double>(20, 0));
  }
}

TEST_CASE("dlogits_may_replace_the_logits") {
  const Tensor logits = random_tensor({9, 65}, 1, DType::f32), targets = some_targets(9, 65);
  const Tensor count = Tensor::empty({1}), losses = Tensor::empty({9}), again = Tensor::empty({9});
  const Tensor apart = logits.empty_like(), in_place = logits.clone();
  kernels::count_targets(targets, -1, count);
  CHECK(count.item() == 7);
  kernels::cross_entropy(logits, targets, count, -1, 0.1, losses, apart);
  kernels::cross_entropy(in_place, targets, count, -1, 0.1, again, in_place);
  CHECK(same_bits(apart, in_place));
  CHECK(same_bits(losses, again));
  kernels::cross_entropy(logits, targets, count, -1, 0.1, again, Tensor{});
  CHECK(same_bits(losses, again));
}

constexpr size_t row_bytes = 33 * sizeof(double);
// Rows of logits at a time: one, three with a last chunk of fewer, just not all, all.
const size_t chunk_sizes[] = {1, 3 * row_bytes, 6 * row_bytes, 7 * row_bytes};

TEST_CASE("linear_cross_entropy_equals_the_composed_one_whatever_the_chunks") {
  const Tensor x = requires_gradient(random_tensor({7, 5}, 1));
  const Tensor weight = requires_gradient(random_tensor({33, 5}, 2));
  const Tensor targets = some_targets(7, 33);
  const CrossEntropyOptions options{.smoothing = 0.1};
  const auto run = [&](const std::function<Tensor()>& f) {
    zero_gradient(x);
    zero_gradient(weight);
    Tape tape;
    const Tensor loss = f();
    tape.backward(loss, 2.5);
    return Inputs{loss, gradient(x).clone(), gradient(weight).clone()};
  };
  const Inputs composed = run([&] { return cross_entropy(linear(x, weight), targets, options); });
  for (const size_t chunk_bytes : chunk_sizes) {
    const Inputs fused =
        run([&] { return linear_cross_entropy(x, weight, targets, options, chunk_bytes); });
    for (size_t i = 0; i < 3; ++i) CHECK(largest_error(fused[i], composed[i]) < 1e-14);
    const Tensor unrecorded = linear_cross_entropy(x, weight, targets, options, chunk_bytes);
    CHECK(same_bits(unrecorded, fused[0]));
    CHECK_FALSE(needs_gradient(unrecorded));
  }
}

TEST_CASE("gradients_of_linear_cross_entropy_are_right") {
  for (const size_t chunk_bytes : chunk_sizes) {
    const GradcheckResult result = gradcheck(
        [=](const Inputs& in) {
          return linear_cross_entropy(in[0], in[1], some_targets(7, 33), {}, chunk_bytes) * 3.0;
        },
        {random_tensor({7, 5}, 1), random_tensor({33, 5}, 2)});
    INFO(result.message);
    CHECK(result);
    CHECK(gradcheck(
        [=](const Inputs& in) {
          return linear_cross_entropy(in[0], in[0], some_targets(7, 7), {}, chunk_bytes);
        },
        {random_tensor({7, 5}, 1)}));
  }
}

TEST_CASE("a_table_tied_to_the_projection_gets_both_gradients") {
  for (const size_t chunk_bytes : {size_t{1}, size_t{1} << 20})
    CHECK(gradcheck(
        [=](const Inputs& in) {
          const Tensor x = embedding(in[0], Tensor::from<int32_t>({2, 0, 2}));
          return linear_cross_entropy(x, in[0], Tensor::from<int32_t>({0, 2, 4}), {}, chunk_bytes);
        },
        {random_tensor({5, 3}, 1)}));
}

TEST_CASE("chunks_bound_the_memory_of_the_logits") {
  const int64_t N = 512, V = 2000, C = 8;  // 4 MB of logits
  const Tensor x = requires_gradient(random_tensor({N, C}, 1, DType::f32));
  const Tensor weight = requires_gradient(random_tensor({V, C}, 2, DType::f32));
  const Tensor targets = some_targets(N, V);
  const auto peak = [&](size_t chunk_bytes) {
    const size_t before = memory_stats().live_bytes;
    reset_peak_memory();
    Tape tape;
    tape.backward(linear_cross_entropy(x, weight, targets, {}, chunk_bytes));
    return memory_stats().peak_bytes - before;
  };
  CHECK(peak(size_t{64} << 20) >= size_t{4096000});
  CHECK(peak(size_t{256} << 10) < size_t{1} << 20);
}

TEST_CASE("losses_give_the_same_bits_on_any_number_of_threads") {
  const Tensor x = random_tensor({257, 130}, 1, DType::f32);
  const Tensor weight = random_tensor({301, 130}, 2, DType::f32);
  const Tensor targets = some_targets(257, 301);
  std::vector<int32_t> indices;
  for (int32_t n = 0; n < 257; ++n) indices.push_back(n * n % 301);
  CHECK(threads_do_not_matter([&] {
    Inputs results;
    for (const size_t chunk_bytes : {size_t{100000}, size_t{1} << 20}) {
      const Tensor leaf = requires_gradient(x.detach());
      const Tensor table = requires_gradient(weight.detach());
      Tape tape;
      const Tensor looked_up = embedding(table, Tensor::from(indices));
      const Tensor loss = linear_cross_entropy(leaf + looked_up, table, targets, {}, chunk_bytes);
      tape.backward(loss);
      results.insert(results.end(), {loss, gradient(leaf), gradient(table)});
    }
    return results;
  }));
}

TEST_CASE("losses_say_what_does_not_fit") {
  const Tensor logits = Tensor::zeros({2, 65});
  CHECK_THROWS_WITH(
      cross_entropy(logits, Tensor::from<int32_t>({1, 65})),
      "cross_entropy: target 65 at position 1 is none of the 65 classes, nor ignore_index -1");
  CHECK_THROWS_WITH(
      cross_entropy(logits, Tensor::from<int32_t>({-1, 3}), {.ignore_index = -100}),
      "cross_entropy: target -1 at position 0 is none of the 65 classes, nor ignore_index -100");
  CHECK_THROWS_WITH(cross_entropy(logits, Tensor::from<int32_t>({1})),
                    "cross_entropy: needs targets of shape [2], one for each row, got [1]");
  CHECK_THROWS_WITH(cross_entropy(logits, Tensor::zeros({2})),
                    "cross_entropy: targets must be i32, got f32");
  CHECK_THROWS_WITH(cross_entropy(logits, Tensor::from<int32_t>({1, 1}), {.smoothing = 1.5}),
                    "cross_entropy: smoothing must lie in [0, 1], got 1.5");
  CHECK_THROWS_WITH(
      linear_cross_entropy(logits, Tensor::zeros({9, 64}), Tensor::from<int32_t>({1, 1})),
      "linear_cross_entropy: inner sizes differ: x [2, 65], weight [9, 64]");
  CHECK_THROWS_WITH(
      linear_cross_entropy(logits, Tensor::zeros({9, 65}), Tensor::from<int32_t>({1, 9})),
      ContainsSubstring("linear_cross_entropy: target 9 at position 1 is none of the 9 classes"));
}

}  // namespace
}  // namespace tapeformer
