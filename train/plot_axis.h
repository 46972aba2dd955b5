// The axis of a plot: its range, its ticks and what is written at them.
#pragma once

#include <string>
#include <vector>

#include "train/plot.h"

namespace tapeformer {

class Axis {
 public:
  /// Counts a value into the range; values that the axis cannot show are passed over.
  void include(double value);
  /// Settles range and ticks, about `count` of them. `rounded` widens the range to ticks.
  void settle(int count, bool rounded);

  explicit Axis(Scale scale) : scale_(scale) {}
  bool shows(double value) const;
  /// Where in the range, 0 at its low and 1 at its high end.
  double position(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }
  std::string label(double tick) const;

 private:
  bool empty() const { return low_ > high_; }
  /// Away from the limits of doubles, so that the range is finite.
  double bounded(double value) const;
  void settle_linear(int count, bool rounded);
  void settle_logarithmic(int count, bool rounded);

  Scale scale_;
  double low_ = 1, high_ = 0;  // empty
  double step_ = 1;            // between ticks of a linear axis
  bool whole_numbers_ = true;
  std::vector<double> ticks_;
};

}  // namespace tapeformer
