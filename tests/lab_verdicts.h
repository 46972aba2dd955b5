// What the tests of the lab's verdicts on tables made by hand share.
#pragma once

#include <array>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "tests/catch.h"

namespace tapeformer::lab {

inline constexpr Verdict holds = Verdict::holds, does_not_hold = Verdict::does_not_hold,
                         reversed = Verdict::reversed, not_decidable = Verdict::not_decidable;
inline const double nan = std::nan("");

/// What the experiment says of the table, which it can draw too.
inline Verdict verdict(const char* experiment, const Table& table) {
  CHECK(!find_experiment(experiment).draw(table).svg().empty());
  return find_experiment(experiment).judge(table).verdict;
}

/// One number for each of two seeds.
using Two = std::array<double, 2>;

}  // namespace tapeformer::lab
