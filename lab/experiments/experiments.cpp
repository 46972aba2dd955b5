#include "lab/experiments/experiments.h"

namespace tapeformer::lab {

std::vector<Experiment> built_in_experiments() {
  return {// BatchNorm, and what its statistics do.
          paper_batchnorm(), padding(), leak(), leak_exploited(), statistics_gap(), small_batches(),
          accumulation(), batch_oscillation(), clipping(), residual_fluctuation(), mixed_lengths(),
          overlong_lines(),
          // Where the norm stands.
          post_gradients(), activation_growth(), warmup(), depth(), placement_swap(), residuals(),
          // Which norm, and in which numbers.
          time_axis(), float16_overflow(), float16_remedies(), rmsnorm_quality(), rmsnorm_speed(),
          long_dependencies(), resnet(), communication(),
          // In translation.
          translation_norms(), translation_recipe(), translation_time_axis()};
}

}  // namespace tapeformer::lab
