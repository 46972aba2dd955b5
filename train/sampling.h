// Drawing the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

#include "core/random.h"

namespace tapeformer {

struct SamplingOptions {
  double temperature = 0.8;  ///< divides the logits; 0 takes the most probable token (greedy)
  int64_t top_k = 0;         ///< only the k most probable tokens (Fan et al. 2018); 0: no limit
  double top_p = 1;  ///< only the fewest tokens of this probability together (Holtzman et al. 2020)
};

/// Throws, naming the cure, for a negative temperature or top_k, and for top_p outside (0, 1].
void check_sampling_options(const SamplingOptions& options);

/// Draws a token: temperature first, then top_k, then top_p of what top_k left. Among equal logits
/// the lower token counts as the more probable. Greedy draws no random number, the rest one.
/// Throws for logits that hold NaN or +infinity, or only -infinity.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     Generator& generator);

}  // namespace tapeformer
