#include "lab/experiments/experiments.h"

namespace tapeformer::lab {

std::vector<Experiment> built_in_experiments() { return {accumulation(), warmup()}; }

}  // namespace tapeformer::lab
