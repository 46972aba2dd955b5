// The numbers of a tensor, for looking at them.
#pragma once

#include <vector>

#include "autograd/ops.h"

namespace tapeformer {

/// x in f64, wherever it lies and whatever its dtype.
inline std::vector<double> host_values(const Tensor& x) {
  return cast(x.to(Device::cpu), DType::f64).to_vector<double>();
}

}  // namespace tapeformer
