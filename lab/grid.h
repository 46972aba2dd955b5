// The grid runner: every combination of norms, placements, depths and rates, on every seed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/laboratory.h"
#include "lab/table.h"

namespace tapeformer::lab {

/// The values of each axis; an axis that is not named has one value, the reference setting's.
struct Grid {
  std::vector<std::string> norms{"layernorm"}, placements{"pre"};
  std::vector<int64_t> depth{4}, warmup{0}, batch{16}, steps{300};
  std::vector<double> lr{1e-3}, clip{0};
};

/// "norms=layernorm,rmsnorm,placements=pre,post,depth=4,8,lr=1e-3": a word without '=' is one more
/// value of the axis before it. Throws for an unknown axis, norm or placement and for a bad number.
Grid parse_grid(const std::string& text);

/// Runs what OUT/grid.csv does not hold yet and adds each run to it as it ends, so that a run that
/// was killed goes on where it stopped. Returns all rows of the grid: norm, placement, depth, lr,
/// warmup, batch, clip, steps, seed, data (name and hash of the text), training_loss,
/// validation_loss (nats per token), end ("finished", "stuck", "diverged"), seconds.
Table run_grid(const Grid& grid, const Laboratory& laboratory, const std::filesystem::path& out);

/// One line for each combination: mean and spread of the losses over the seeds that finished, and
/// how many diverged or got stuck.
std::string grid_summary(const Table& runs);

}  // namespace tapeformer::lab
