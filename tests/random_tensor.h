// Random inputs for tests.
#pragma once

#include "core/kernels.h"

namespace tapeformer {

/// Standard normal numbers; another `seed`, other numbers.
inline Tensor random_tensor(const Shape& shape, uint64_t seed, DType dtype = DType::f64) {
  const Tensor x = Tensor::empty(shape, dtype);
  kernels::fill_normal(x, 0, 1, RandomKey{.seed = seed});
  return x;
}

/// Numbers in [low, high).
inline Tensor uniform_tensor(const Shape& shape, double low, double high, uint64_t seed,
                             DType dtype = DType::f64) {
  const Tensor x = Tensor::empty(shape, dtype);
  kernels::fill_uniform(x, low, high, RandomKey{.seed = seed});
  return x;
}

}  // namespace tapeformer
