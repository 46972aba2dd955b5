// What experiments that train models share: runs side by side, what a run that diverged counts for,
// and claims of two parts.
#pragma once

#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/experiments/lines.h"

namespace tapeformer::lab {

/// A training run, and the cells that name it in the table.
struct Run {
  std::vector<Cell> cells;
  Trial trial;
};

/// Trains them all on the text, or on the lines, several at a time. The table has `columns` for the
/// cells of the runs, then "loss" (validation), "training" (mean of the last tenth), "stuck" and
/// "diverged".
Table train_all(const Laboratory& lab, const std::vector<std::string>& columns,
                const std::vector<Run>& runs, bool on_lines = false);
/// "norm batchnorm, batch 4, seed 1": a line for the log.
std::string to_text(const std::vector<std::string>& columns, const std::vector<Cell>& cells);

/// One column of losses, infinite where it is no number: a run that diverged is worse than any that
/// did not. The difference of two of those is no number, and decides nothing.
std::vector<double> losses(const Table& runs, const std::string& column = "loss");

/// On a claim of two parts: a verdict that both share; does not hold where one part fails; else not
/// decidable.
Verdict both(Verdict a, Verdict b);

/// The runs with one more column, "log2": that of column `x`, for an axis of doublings.
Table with_log2(const Table& runs, const std::string& x);

}  // namespace tapeformer::lab
