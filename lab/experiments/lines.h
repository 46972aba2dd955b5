// Lines over the means of seeds, for the plots of experiments.
#pragma once

#include <string>

#include "lab/card.h"
#include "lab/table.h"
#include "train/plot.h"

namespace tapeformer::lab {

/// Adds the mean of column `y` over the rows of equal `x`, and behind it, where there are several,
/// a faint line for each seed.
inline void add_lines(Panel& panel, const std::string& label, const Table& rows,
                      const std::string& x, const std::string& y) {
  int style = 0;
  for (const Line& line : panel.lines) style += !line.label.empty();
  const auto seeds = rows.distinct("seed");
  for (const Cell& seed : seeds) {
    if (seeds.size() == 1) break;
    const Table run = rows.where("seed", seed);
    panel.lines.push_back(
        {.x = run.numbers(x), .y = run.numbers(y), .style = style, .faint = true});
  }
  Line mean{.label = label, .style = style};
  for (const Cell& at : rows.distinct(x)) {
    mean.x.push_back(std::get<double>(at));
    mean.y.push_back(spread(rows.where(x, at).numbers(y)).mean);
  }
  mean.markers = mean.x.size() <= 16;
  panel.lines.push_back(mean);
}

}  // namespace tapeformer::lab
