// The experiments of the norm lab, one in each file beside this one.
#pragma once

#include <vector>

#include "lab/experiment.h"

namespace tapeformer::lab {

/// In the order in which the lab shows them.
std::vector<Experiment> built_in_experiments();

Experiment paper_batchnorm();
Experiment padding();
Experiment leak();
Experiment leak_exploited();
Experiment statistics_gap();
Experiment small_batches();
Experiment accumulation();
Experiment batch_oscillation();
Experiment clipping();
Experiment residual_fluctuation();
Experiment mixed_lengths();
Experiment overlong_lines();
Experiment post_gradients();
Experiment activation_growth();
Experiment warmup();
Experiment depth();
Experiment placement_swap();
Experiment residuals();
Experiment time_axis();
Experiment float16_overflow();
Experiment float16_remedies();
Experiment rmsnorm_quality();
Experiment rmsnorm_speed();
Experiment long_dependencies();
Experiment translation_norms();
Experiment translation_recipe();
Experiment translation_time_axis();
Experiment resnet();
Experiment communication();

}  // namespace tapeformer::lab
