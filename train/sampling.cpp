#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/check.h"

namespace tapeformer {
namespace {

int32_t most_probable(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The order in which tokens are kept. By logit, since weights may be equal after rounding.
struct MoreProbable {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  }
};

double total_weight(const std::vector<double>& weights, const std::vector<int32_t>& tokens) {
  double total = 0;
  for (const int32_t token : tokens) total += weights[token];
  return total;
}

// Keeps the fewest tokens whose weights reach `share` of the total (Holtzman et al. 2020, eq. 2).
void keep_nucleus(std::span<const float> logits, const std::vector<double>& weights, double share,
                  std::vector<int32_t>& tokens) {
  const double total = total_weight(weights, tokens);
  // All tokens below this bound have together less than the nucleus leaves out, so that none is in
  // it: few remain to be sorted.
  const double bound = 0.5 * (1 - share) * total / static_cast<double>(tokens.size());
  std::erase_if(tokens, [&](int32_t token) { return weights[token] < bound; });
  std::sort(tokens.begin(), tokens.end(), MoreProbable{logits});
  double mass = 0;
  size_t count = 0;
  while (count < tokens.size() && mass < share * total) mass += weights[tokens[count++]];
  tokens.resize(count);
}

// A token with probability weight / total; never one of weight zero.
int32_t draw(const std::vector<double>& weights, const std::vector<int32_t>& tokens,
             double uniform) {
  const double target = uniform * total_weight(weights, tokens);
  double mass = 0;
  int32_t last = tokens.front();
  for (const int32_t token : tokens) {
    if (weights[token] == 0) continue;
    mass += weights[token];
    last = token;
    if (mass > target) break;
  }
  return last;
}

void check_logits(std::span<const float> logits) {
  check(!logits.empty(), "sample_token: there are no logits");
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    check(!std::isnan(logits[i]), "sample_token: the logit of token ", i,
          " is NaN; the model's weights are not finite (training diverged?)");
    largest = std::max(largest, logits[i]);
  }
  check(std::isfinite(largest), "sample_token: the largest logit is ", largest,
        ", which leaves no probabilities to draw from");
}

}  // namespace

void check_sampling_options(const SamplingOptions& options) {
  check(options.temperature >= 0 && std::isfinite(options.temperature),
        "sampling: temperature must be 0 (always the most probable token) or positive, got ",
        options.temperature);
  check(options.top_k >= 0, "sampling: top_k must be 0 (no limit) or positive, got ",
        options.top_k);
  check(options.top_p > 0 && options.top_p <= 1,
        "sampling: top_p must be above 0 and at most 1 (no limit), got ", options.top_p,
        "; for the most probable token alone use temperature 0");
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     Generator& generator) {
  check_sampling_options(options);
  check_logits(logits);
  if (options.temperature == 0) return most_probable(logits);

  // softmax(logits / temperature) up to its denominator; the largest exponent is 0.
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = std::exp((logits[i] - largest) / options.temperature);

  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(tokens.size())) {
    const auto end = tokens.begin() + options.top_k;
    std::partial_sort(tokens.begin(), end, tokens.end(), MoreProbable{logits});
    tokens.erase(end, tokens.end());
  }
  if (options.top_p < 1) keep_nucleus(logits, weights, options.top_p, tokens);
  return draw(weights, tokens, generator.uniform());
}

}  // namespace tapeformer
