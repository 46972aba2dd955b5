// What the experiments on how norms work share: lines of means over seeds, fitted slopes, and
// random rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/kernels.h"
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

/// Of the straight line of least squares through the points.
inline double slope(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean_x = spread(x).mean, mean_y = spread(y).mean;
  double product = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    product += (x[i] - mean_x) * (y[i] - mean_y);
    square += (x[i] - mean_x) * (x[i] - mean_x);
  }
  return product / square;
}

/// [1, rows, channels] of N(0, rms^2), by seed.
inline Tensor normal_rows(int64_t rows, int64_t channels, double rms, uint64_t seed) {
  const Tensor x = Tensor::empty({1, rows, channels});
  kernels::fill_normal(x, 0, rms, RandomKey{seed, Purpose::evaluation, 0, 0});
  return x;
}

}  // namespace tapeformer::lab
