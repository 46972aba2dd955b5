// What the experiments on how norms work share: lines of means over seeds, fitted slopes, and
// random rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "lab/card.h"
#include "lab/experiments/lines.h"
#include "lab/table.h"
#include "train/plot.h"

namespace tapeformer::lab {

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
