// The experiments of the norm lab, one in each file beside this one.
#pragma once

#include <vector>

#include "lab/experiment.h"

namespace tapeformer::lab {

/// In the order in which the lab shows them.
std::vector<Experiment> built_in_experiments();

Experiment accumulation();
Experiment warmup();

}  // namespace tapeformer::lab
