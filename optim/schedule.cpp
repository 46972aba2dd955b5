#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace tapeformer {
namespace {

constexpr double pi = 3.14159265358979323846;

// The share of (lr - min_lr) that is left at `progress`, 0 at the end of the warm-up and 1 at the
// horizon.
double remaining(const std::string& name, double progress) {
  if (name == "constant") return 1;
  if (name == "linear") return 1 - progress;
  if (name == "cosine") return (1 + std::cos(pi * progress)) / 2;
  return std::min(1.0, (1 - progress) / 0.2);  // wsd
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"constant", "linear", "cosine", "invsqrt", "wsd"};
  return names;
}

double learning_rate(const ScheduleOptions& options, int64_t step) {
  const auto& [name, lr, min_lr, warmup, steps] = options;
  const auto& names = schedule_names();
  check(std::ranges::find(names, name) != names.end(), "schedule: there is no \"", name,
        "\"; known are ", names);
  check(lr >= 0 && min_lr >= 0 && warmup >= 0 && steps >= 0 && step >= 0 && std::isfinite(lr) &&
            std::isfinite(min_lr),
        "schedule: numbers must not be negative, infinite or NaN, got lr ", lr, ", min_lr ", min_lr,
        ", warmup ", warmup, ", steps ", steps, ", step ", step);

  const auto t = static_cast<double>(step), rise = static_cast<double>(warmup);
  if (name == "invsqrt") {
    const double peak = std::max(rise, 1.0);
    return lr * std::min(1 / std::sqrt(t + 1), (t + 1) * std::pow(peak, -1.5)) * std::sqrt(peak);
  }
  if (step < warmup) return lr * (t + 1) / rise;
  const double progress = step >= steps ? 1 : (t - rise) / static_cast<double>(steps - warmup);
  return min_lr + (lr - min_lr) * remaining(name, progress);
}

}  // namespace tapeformer
