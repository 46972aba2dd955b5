// Learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapeformer {

struct ScheduleOptions {
  std::string name = "cosine";  ///< one of schedule_names()
  double lr = 1e-3;             ///< the peak
  double min_lr = 1e-4;         ///< where the decay ends
  int64_t warmup = 100;         ///< steps of linear rise: step t of them has lr (t + 1) / warmup
  int64_t steps = 2000;         ///< the horizon
};

/// The rate of step `step`, counted from 0.
///   constant   lr
///   linear     from lr to min_lr in a line
///   cosine     min_lr + (lr - min_lr) (1 + cos(pi progress)) / 2 (Loshchilov & Hutter 2017, eq. 5)
///   invsqrt    lr min((t+1)^-1/2, (t+1) warmup^-3/2) warmup^1/2, t = step (Vaswani et al. 2017,
///              eq. 3, scaled so that the peak is lr)
///   wsd        warm-up, stable, decay in a line over the last fifth of progress (Hu et al. 2024)
/// All but invsqrt have the linear warm-up first; progress runs from 0 at its end to 1 at the
/// horizon. Throws for an unknown name, listing the known ones, and for numbers that are
/// negative or not finite.
double learning_rate(const ScheduleOptions& options, int64_t step);
const std::vector<std::string>& schedule_names();

}  // namespace tapeformer
