// Checks that several operations make of their arguments.
#pragma once

#include "core/dtype.h"
#include "core/tensor.h"

namespace tapeformer {

/// Throws unless x is f32 or f64, naming the operation and the cure.
inline void check_floating(const char* operation, const Tensor& x) {
  dispatch_floating(operation, x.dtype(), [](auto) {});
}

/// The non-negative index of dimension `dim`, which may count from the end.
inline int check_dimension(const char* operation, const Shape& shape, int dim) {
  const int index = dim < 0 ? dim + shape.rank() : dim;
  check(index >= 0 && index < shape.rank(), operation, ": shape ", shape, " has no dimension ",
        dim);
  return index;
}

}  // namespace tapeformer
