// Sampling: which tokens can be drawn, how often, and what is refused.
#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tests/catch.h"

using namespace tapeformer;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::map<int32_t, int> draw(const std::vector<float>& logits, const SamplingOptions& options,
                            int times, uint64_t seed = 1) {
  Generator generator({.seed = seed, .purpose = Purpose::sampling});
  std::map<int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sample_token(logits, options, generator)];
  return counts;
}

std::set<int32_t> support(const std::vector<float>& logits, const SamplingOptions& options) {
  std::set<int32_t> result;
  for (const auto& [token, count] : draw(logits, options, 4000)) result.insert(token);
  return result;
}

// Pearson's sum over tokens of (count - expected)^2 / expected.
double chi_square(const std::map<int32_t, int>& counts, const std::vector<double>& probabilities,
                  int times) {
  double sum = 0;
  for (size_t token = 0; token < probabilities.size(); ++token) {
    const double expected = probabilities[token] * times;
    const auto found = counts.find(static_cast<int32_t>(token));
    const double count = found == counts.end() ? 0 : found->second;
    if (expected == 0) {
      CHECK(count == 0);
    } else {
      sum += (count - expected) * (count - expected) / expected;
    }
  }
  return sum;
}

// Logits of a distribution at temperature 1.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3);
  return logits;
}

}  // namespace

TEST_CASE("sampling_follows_the_softmax_of_the_logits") {
  const std::vector<double> p = {0.05, 0.4, 0, 0.25, 0.1, 0.2};
  // With 4 degrees of freedom 18.5 is passed once in a thousand times.
  CHECK(chi_square(draw(logits_of(p), {.temperature = 1}, 20000), p, 20000) < 18.5);
}

TEST_CASE("sampling_temperature_divides_the_logits") {
  const std::vector<double> p = {0.5, 0.3, 0.2};
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> tempered;
    double total = 0;
    for (const double x : p) total += std::pow(x, 1 / temperature);
    for (const double x : p) tempered.push_back(std::pow(x, 1 / temperature) / total);
    const auto counts = draw(logits_of(p), {.temperature = temperature}, 20000);
    CHECK(chi_square(counts, tempered, 20000) < 13.8);  // 2 degrees of freedom, 1 in 1000
  }
  CHECK(draw({0, 1, 0.999f}, {.temperature = 1e-9}, 100).at(1) == 100);
  CHECK(support({0, 100, 50}, {.temperature = 1e12}) == std::set<int32_t>{0, 1, 2});
}

TEST_CASE("sampling_at_temperature_zero_takes_the_first_of_the_most_probable") {
  CHECK(draw({1, 3, 2, 3}, {.temperature = 0}, 50).at(1) == 50);
  CHECK(draw({-infinity, -infinity, -5}, {.temperature = 0}, 5).at(2) == 5);
  Generator used(RandomKey{9}), fresh(RandomKey{9});
  sample_token(std::vector<float>{1, 2}, {.temperature = 0}, used);
  CHECK(used.next() == fresh.next());
}

TEST_CASE("sampling_draws_one_number_for_a_token") {
  const std::vector<float> logits = {1, 2, 3, 4};
  for (const SamplingOptions options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 1, .top_k = 2},
        SamplingOptions{.temperature = 1, .top_p = 0.5}}) {
    Generator used(RandomKey{9}), fresh(RandomKey{9});
    sample_token(logits, options, used);
    fresh.uniform();
    CHECK(used.next() == fresh.next());
  }
}

TEST_CASE("sampling_of_the_same_seed_gives_the_same_tokens") {
  const std::vector<float> logits(50, 0.0f);
  CHECK(draw(logits, {}, 200, 4) == draw(logits, {}, 200, 4));
  CHECK(draw(logits, {}, 200, 4) != draw(logits, {}, 200, 5));
}

TEST_CASE("sampling_top_k_keeps_the_k_most_probable_tokens") {
  const std::vector<float> logits = {1, 5, 3, 5, 2, 3};
  const auto top = [&](int64_t k) { return support(logits, {.temperature = 5, .top_k = k}); };
  CHECK(top(1) == std::set<int32_t>{1});
  CHECK(top(2) == std::set<int32_t>{1, 3});
  CHECK(top(3) == std::set<int32_t>{1, 2, 3});  // of two equal ones the first
  CHECK(top(4) == std::set<int32_t>{1, 2, 3, 5});
  for (const int64_t k : {int64_t{0}, int64_t{6}, int64_t{7}, INT64_MAX})
    CHECK(top(k) == std::set<int32_t>{0, 1, 2, 3, 4, 5});

  const auto counts = draw(logits_of({0.1, 0.3, 0.4, 0.2}), {.temperature = 1, .top_k = 2}, 20000);
  CHECK(chi_square(counts, {0, 3.0 / 7, 4.0 / 7, 0}, 20000) < 10.8);  // 1 degree of freedom
}

TEST_CASE("sampling_top_p_keeps_the_fewest_tokens_that_reach_the_mass") {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.03, 0.3, 0.17});
  const auto top = [&](double p) { return support(logits, {.temperature = 1, .top_p = p}); };
  CHECK(top(1e-300) == std::set<int32_t>{1});
  CHECK(top(0.39) == std::set<int32_t>{1});
  CHECK(top(0.41) == std::set<int32_t>{1, 3});
  CHECK(top(0.69) == std::set<int32_t>{1, 3});
  CHECK(top(0.71) == std::set<int32_t>{1, 3, 4});
  CHECK(top(0.96) == std::set<int32_t>{0, 1, 3, 4});
  CHECK(top(0.98) == std::set<int32_t>{0, 1, 2, 3, 4});
  CHECK(top(1) == std::set<int32_t>{0, 1, 2, 3, 4});
  // Exactly the mass is enough, and of equal tokens the first ones are taken.
  const std::vector<float> equal(8, 0.25f);
  CHECK(support(equal, {.temperature = 1, .top_p = 0.5}) == std::set<int32_t>{0, 1, 2, 3});

  const auto counts = draw(logits, {.temperature = 1, .top_p = 0.6}, 20000);
  CHECK(chi_square(counts, {0, 4.0 / 7, 0, 3.0 / 7, 0}, 20000) < 10.8);
}

TEST_CASE("sampling_top_p_of_a_large_vocabulary_is_that_of_sorting_it_all") {
  Generator random(RandomKey{11});
  std::vector<float> logits(500);
  for (float& logit : logits) logit = static_cast<float>(6 * random.uniform());
  for (const double p : {0.01, 0.1, 0.4}) {
    std::vector<int32_t> order(logits.size());
    double total = 0, mass = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
      total += std::exp(logits[i]);
    }
    std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    std::set<int32_t> nucleus;
    for (size_t i = 0; mass < p * total; ++i) {
      nucleus.insert(order[i]);
      mass += std::exp(logits[order[i]]);
    }
    CHECK(support(logits, {.temperature = 1, .top_p = p}) == nucleus);
  }
}

TEST_CASE("sampling_applies_temperature_then_top_k_then_top_p") {
  // After top_k the two tokens have 4/7 and 3/7; before it 0.4 and 0.3.
  const std::vector<float> logits = logits_of({0.4, 0.3, 0.2, 0.1});
  const SamplingOptions options{.temperature = 1, .top_k = 2, .top_p = 0.55};
  CHECK(support(logits, options) == std::set<int32_t>{0});
  // The first has 0.4 of all at temperature 1, and sqrt 0.4 / sum of the roots = 0.33 at 2.
  CHECK(support(logits, {.temperature = 2, .top_p = 0.38}) == std::set<int32_t>{0, 1});
  CHECK(support(logits, {.temperature = 1, .top_p = 0.38}) == std::set<int32_t>{0});
}

TEST_CASE("sampling_never_draws_a_masked_token") {
  const std::vector<float> logits = {-infinity, 0, -infinity, 0, -infinity};
  CHECK(support(logits, {.temperature = 1}) == std::set<int32_t>{1, 3});
  CHECK(support(logits, {.temperature = 1, .top_k = 4}) == std::set<int32_t>{1, 3});
  CHECK(support(logits, {.temperature = 1, .top_p = 0.999}) == std::set<int32_t>{1, 3});
  CHECK(support({7}, {}) == std::set<int32_t>{0});
}

TEST_CASE("sampling_refuses_options_that_make_no_sense_and_names_the_cure") {
  const auto refuses = [](const SamplingOptions& options, const char* message) {
    CHECK_THROWS_WITH(draw({1, 2}, options, 1), ContainsSubstring(message));
    CHECK_THROWS_WITH(check_sampling_options(options), ContainsSubstring(message));
  };
  refuses({.temperature = -1}, "temperature must be 0 (always the most probable token)");
  refuses({.temperature = NAN}, "temperature must be 0");
  refuses({.temperature = INFINITY}, "temperature must be 0");
  refuses({.top_k = -1}, "top_k must be 0 (no limit) or positive, got -1");
  for (const double p : {0.0, -0.5, 1.5, static_cast<double>(NAN)})
    refuses({.top_p = p}, "top_p must be above 0 and at most 1");
  CHECK_NOTHROW(check_sampling_options({}));
}

TEST_CASE("sampling_refuses_logits_without_a_distribution") {
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{.temperature = temperature};
    CHECK_THROWS_WITH(draw({1, NAN, 2}, options, 1), ContainsSubstring("token 1 is NaN"));
    CHECK_THROWS_WITH(draw({1, infinity}, options, 1), ContainsSubstring("largest logit is inf"));
    CHECK_THROWS_WITH(draw({-infinity}, options, 1), ContainsSubstring("largest logit is -inf"));
    CHECK_THROWS_WITH(draw({}, options, 1), ContainsSubstring("there are no logits"));
  }
}
