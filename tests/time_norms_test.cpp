// Norms over the times of a sample against their formulas, with and without padding.
#include "layers/time_norms.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/norms.h"

namespace tapeformer {
namespace {

/// Each sample's groups of `group` channels, normed over their first `lengths` times, in double.
std::vector<double> formula(const Tensor& x, int64_t group, const std::vector<int32_t>& lengths,
                            const Tensor& weight, const Tensor& bias) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  const auto in = values_of(x), gain = values_of(weight), shift = values_of(bias);
  std::vector<double> out(in.size());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t first = 0; first < C; first += group) {
      const auto at = [&](int64_t t, int64_t c) { return (b * T + t) * C + first + c; };
      const double n = lengths[b] * group;
      double mean = 0, variance = 0;
      for (int64_t t = 0; t < lengths[b]; ++t)
        for (int64_t c = 0; c < group; ++c) mean += in[at(t, c)] / n;
      for (int64_t t = 0; t < lengths[b]; ++t)
        for (int64_t c = 0; c < group; ++c) variance += std::pow(in[at(t, c)] - mean, 2) / n;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t c = 0; c < group; ++c)
          out[at(t, c)] = gain[first + c] * (in[at(t, c)] - mean) / std::sqrt(variance + 1e-5) +
                          shift[first + c];
    }
  return out;
}

struct Case {
  const char* name;
  int64_t group;
  bool knows_lengths;
};
constexpr Case cases[] = {
    {"groupnorm-time", 16, true}, {"instancenorm", 1, true}, {"layernorm-time", 1, false}};

TEST_CASE("norms_over_time_follow_their_formulas") {
  for (const auto& [name, group, knows_lengths] : cases)
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{7, 7, 7}, {7, 1, 4}}) {
        INFO(name << ", " << name_of(dtype));
        const auto norm = random_norm(name, 48, dtype);
        const Tensor x = affine(random_tensor({3, 7, 48}, 1, dtype), 1, 2);
        const auto parameters = named_parameters(*norm);
        const auto expected =
            formula(x, group, knows_lengths ? lengths : std::vector<int32_t>{7, 7, 7},
                    parameters[0].tensor, parameters[1].tensor);
        for (const bool training : {false, true}) {
          const NormContext context = training ? training_context(lengths_of(lengths))
                                               : evaluation_context(lengths_of(lengths));
          CHECK(largest_error(norm->forward(x, context), expected) <
                (dtype == DType::f32 ? 3e-5 : 1e-12));
        }
        if (lengths[1] == 7)
          CHECK(largest_error(norm->forward(x, {}), expected) <
                (dtype == DType::f32 ? 3e-5 : 1e-12));
      }
}

TEST_CASE("padding_longer_changes_layer_norm_over_time_only") {
  const Tensor x = random_tensor({3, 7, 32}, 1), dy = random_tensor({3, 7, 32}, 2);
  const auto repadded = [](const Tensor& x, double padding) {
    return concat({x, Tensor::full({3, 5, 32}, padding, DType::f64)}, 1);
  };
  for (const Case& each : cases) {
    INFO(each.name);
    const auto norm = random_norm(each.name, 32);
    const NormContext context = training_context(lengths_of({7, 1, 4}));
    const NormPass shorter = pass_of(*norm, x, dy, context);
    const NormPass longer = pass_of(*norm, repadded(x, 3), repadded(dy, 0), context);
    const auto changed = [](const Tensor& a, const Tensor& b) {
      return largest_error(a, b) > 1e-6;
    };
    CHECK(changed(slice(longer.y, 1, 0, 7), shorter.y) == !each.knows_lengths);
    CHECK(changed(slice(longer.dx, 1, 0, 7), shorter.dx) == !each.knows_lengths);
    CHECK(changed(longer.gradients[0], shorter.gradients[0]) == !each.knows_lengths);
  }
}

TEST_CASE("padding_does_not_reach_the_statistics_over_time_even_as_nan") {
  const Tensor x = random_tensor({2, 4, 16}, 1), poisoned = x.clone();
  poisoned.view({8, 16}).rows(2, 4).fill(NAN);
  for (const char* name : {"groupnorm-time", "instancenorm"}) {
    const auto norm = random_norm(name, 16);
    const NormContext context = evaluation_context(lengths_of({2, 4}));
    const Tensor y = norm->forward(poisoned, context), expected = norm->forward(x, context);
    CHECK(same_bits(slice(slice(y, 0, 0, 1), 1, 0, 2), slice(slice(expected, 0, 0, 1), 1, 0, 2)));
  }
}

TEST_CASE("norms_over_time_give_the_bias_for_a_single_time") {
  for (const char* name : {"instancenorm", "layernorm-time"}) {
    const auto norm = random_norm(name, 16);
    const Tensor y = norm->forward(random_tensor({1, 1, 16}, 1), {});
    CHECK(values_of(y) == values_of(named_parameters(*norm)[1].tensor));
  }
}

TEST_CASE("norms_over_time_say_what_does_not_fit") {
  const auto norm = find_norm("instancenorm")(4);
  CHECK_THROWS_WITH(norm->forward(Tensor::zeros({3, 4}), {}),
                    "group norm over time: needs x [B, T, C], got [3, 4]");
  CHECK_THROWS_WITH(norm->forward(Tensor::zeros({2, 3, 4}), evaluation_context(lengths_of({1}))),
                    ContainsSubstring("lengths must be [2]"));
  CHECK_THROWS_WITH(TimeGroupNorm(12, 5), ContainsSubstring("groups of 5 do not divide 12"));
}

}  // namespace
}  // namespace tapeformer
