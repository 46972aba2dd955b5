// Dynamic loss scaling, for gradients in f16 (Micikevicius et al. 2018, "Mixed Precision Training",
// section 3.2).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace tapeformer {

/// Small gradients vanish in f16, so the loss is multiplied by `value` before backward and the
/// optimizer divides by it. Where a gradient overflows, the step is skipped and the scale halved;
/// after `patience` steps without it is doubled. Start and patience are those of PyTorch's
/// GradScaler.
struct LossScale {
  double value = 65536;
  int64_t good_steps = 0;  ///< since the scale changed
  int64_t skipped = 0;     ///< steps in all
  static constexpr int64_t patience = 2000;

  void update(bool finite) {
    good_steps = finite ? good_steps + 1 : 0;
    skipped += !finite;
    if (!finite) value = std::max(value / 2, 1.0);
    if (good_steps == patience) value *= 2, good_steps = 0;
  }
};

/// What to multiply the loss with before a single backward of a model of this dtype: so that its
/// gradients can be looked at, divided by it again.
inline double gradient_scale(DType dtype) { return dtype == DType::f16 ? LossScale{}.value : 1; }

}  // namespace tapeformer
