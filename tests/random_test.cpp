// Philox against its published vectors, the distributions made from it, and dropout.
#include "core/random.h"

#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/threads.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

TEST_CASE("philox_gives_the_published_words") {
  // The known-answer vectors of the Random123 distribution, philox4x32 with 10 rounds.
  CHECK(philox4x32({0, 0, 0, 0}, 0) == Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
        Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams_differ_in_every_part_of_their_key") {
  const RandomKey key{1, Purpose::dropout, 2, 3};
  const Philox4 words = key.block(0);
  CHECK(words != key.block(1));
  CHECK(words != RandomKey{2, Purpose::dropout, 2, 3}.block(0));
  CHECK(words != RandomKey{1, Purpose::batches, 2, 3}.block(0));
  CHECK(words != RandomKey{1, Purpose::dropout, 3, 3}.block(0));
  CHECK(words != RandomKey{1, Purpose::dropout, 2, 4}.block(0));
  CHECK(words == RandomKey{1, Purpose::dropout, 2, 3}.block(0));
}

TEST_CASE("tensors_read_the_stream_word_by_word") {
  const RandomKey key{.seed = 5, .step = 7};
  const Tensor x = Tensor::empty({1003});
  kernels::fill_uniform(x, 0, 1, key);
  const Tensor z = Tensor::empty({1003}, DType::f64);
  kernels::fill_normal(z, 0, 1, key);
  for (const int64_t i : {0, 1, 2, 3, 63, 64, 999, 1002}) {
    const Philox4 words = key.block(static_cast<uint32_t>(i / 4));
    CHECK(x.data<float>()[i] == uniform(words[i % 4]));
    const int64_t even = i / 2 * 2;
    CHECK(z.data<double>()[i] == normals(words[even % 4], words[even % 4 + 1])[i % 2]);
  }
}

TEST_CASE("uniform_numbers_are_uniform") {
  constexpr int64_t n = 200000;
  const Tensor x = uniform_tensor({n}, -2, 3, 11, DType::f32);
  double sum = 0, squares = 0;
  std::array<int, 10> bins{};
  for (const float value : x.to_vector<float>()) {
    REQUIRE((value >= -2 && value < 3));
    sum += value;
    squares += value * value;
    ++bins[static_cast<int>((value + 2) * 2)];
  }
  const double mean = sum / n;
  CHECK(std::abs(mean - 0.5) < 5 * (5 / std::sqrt(12)) / std::sqrt(n));
  CHECK(std::abs(squares / n - mean * mean - 25.0 / 12) < 0.02);
  double chi = 0;  // 9 degrees of freedom: above 33.7 in one of 10,000 seeds
  for (const int count : bins) chi += (count - n / 10.0) * (count - n / 10.0) / (n / 10.0);
  CHECK(chi < 33.7);
}

TEST_CASE("normal_numbers_are_normal") {
  constexpr int64_t n = 200001;  // odd: the last pair gives one number only
  const Tensor x = Tensor::empty({n});
  kernels::fill_normal(x, 1, 2, RandomKey{.seed = 3});
  double moments[5] = {};
  int64_t within = 0;
  for (const float value : x.to_vector<float>()) {
    const double z = (value - 1) / 2;
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / n;
    within += std::abs(z) < 1;
  }
  // Five standard errors each: the k-th power's variance is that of the normal distribution.
  const double error = 5 / std::sqrt(n);
  CHECK(std::abs(moments[1]) < error);
  CHECK(std::abs(moments[2] - 1) < error * std::sqrt(2));
  CHECK(std::abs(moments[3]) < error * std::sqrt(15));
  CHECK(std::abs(moments[4] - 3) < error * std::sqrt(96));
  CHECK(std::abs(static_cast<double>(within) / n - 0.682689) < error * 0.466);
}

TEST_CASE("random_numbers_do_not_depend_on_threads") {
  const int threads = num_threads();
  set_num_threads(1);
  const auto one = random_tensor({100003}, 8, DType::f32).to_vector<float>();
  set_num_threads(2);
  const auto two = random_tensor({100003}, 8, DType::f32).to_vector<float>();
  set_num_threads(threads);
  CHECK(one == two);
}

TEST_CASE("generator_draws_below_n_evenly") {
  Generator generator({.seed = 4});
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) ++counts[generator.below(6)];
  double chi = 0;  // 5 degrees of freedom: above 25.7 in one of 10,000 seeds
  for (const int count : counts) chi += (count - 10000.0) * (count - 10000.0) / 10000;
  CHECK(chi < 25.7);
}

TEST_CASE("dropout_keeps_the_rate_and_the_mean") {
  constexpr int64_t n = 200000;
  const RandomScope random({.seed = 1, .purpose = Purpose::dropout});
  const Tensor y = dropout(Tensor::full({n}, 3), 0.3);
  int64_t kept = 0;
  for (const float value : y.to_vector<float>()) {
    REQUIRE((value == 0 || value == Approx(3 / 0.7)));
    kept += value != 0;
  }
  CHECK(std::abs(static_cast<double>(kept) / n - 0.7) < 5 * std::sqrt(0.21 / n));
}

TEST_CASE("dropout_backward_uses_the_mask_of_forward") {
  const RandomScope random({.seed = 1, .purpose = Purpose::dropout});
  const Tensor x = requires_gradient(Tensor::full({1000}, 1));
  Tape tape;
  const Tensor y = dropout(x, 0.5);
  tape.backward(sum(y));
  CHECK(gradient(x).to_vector<float>() == y.to_vector<float>());
}

TEST_CASE("dropout_masks_repeat_with_the_key_and_differ_by_operation_and_step") {
  const Tensor x = Tensor::full({500}, 1);
  const auto masks = [&](uint32_t step) {
    const RandomScope random({.seed = 9, .purpose = Purpose::dropout, .step = step});
    const auto first = dropout(x, 0.5).to_vector<float>();
    return std::pair(first, dropout(x, 0.5).to_vector<float>());
  };
  const auto [a, b] = masks(1);
  CHECK(masks(1) == std::pair(a, b));
  CHECK(a != b);
  CHECK(masks(2).first != a);
}

TEST_CASE("dropout_is_the_identity_when_not_training") {
  const Tensor x = random_tensor({7}, 1);
  CHECK(dropout(x, 0.5, false).is(x));  // and needs no RandomScope
  CHECK(dropout(x, 0).is(x));
}

TEST_CASE("dropout_gradient") {
  for (const int64_t n : {1, 31, 33})
    CHECK(gradcheck(
        [](const std::vector<Tensor>& in) {
          const RandomScope random({.seed = 2, .purpose = Purpose::dropout});
          return dropout(in[0], 0.4);
        },
        {random_tensor({3, n}, 1)}));
}

TEST_CASE("dropout_mistakes_are_explained") {
  const Tensor x = Tensor::zeros({3});
  CHECK_THROWS_WITH(dropout(x, 1), ContainsSubstring("dropout: the probability must be in [0, 1)"));
  CHECK_THROWS_WITH(dropout(x, -0.1), ContainsSubstring("got -0.1"));
  CHECK_THROWS_WITH(dropout(x, 0.1), ContainsSubstring("need a RandomScope"));
}
