// Checks that several operations make of their arguments.
#pragma once

#include "core/dtype.h"
#include "core/tensor.h"

namespace tapeformer {

/// Throws for integers, naming the operation and the cure.
inline void check_floating(const char* operation, DType dtype) {
  dispatch_floating(operation, dtype, [](auto) {});
}
inline void check_floating(const char* operation, const Tensor& x) {
  check_floating(operation, x.dtype());
}

/// Throws unless x and y, arguments of these names, lie on one device.
inline void check_devices(const char* operation, const char* x_name, const Tensor& x,
                          const char* y_name, const Tensor& y) {
  check(x.device() == y.device(), operation, ": devices differ: ", x_name, " is on ", x.device(),
        ", ", y_name, " on ", y.device());
}

/// Throws unless x and y, arguments of these names, have the same dtype and device.
inline void check_alike(const char* operation, const char* x_name, const Tensor& x,
                        const char* y_name, const Tensor& y) {
  check(x.dtype() == y.dtype(), operation, ": dtypes differ: ", x_name, " is ", x.dtype(), ", ",
        y_name, " is ", y.dtype(), "; convert one with cast(x, DType::", x.dtype(), ")");
  check_devices(operation, x_name, x, y_name, y);
}

/// Throws unless p, a parameter of this name with a number for each channel, is [C] beside x
/// [.., C], of its dtype and device; one that was not given passes.
inline void check_channels(const char* operation, const char* name, const Tensor& x,
                           const Tensor& p) {
  if (!p.defined()) return;
  check(p.shape() == Shape{x.dim(-1)}, operation, ": ", name, " must be [", x.dim(-1),
        "] beside x ", x.shape(), ", got ", p.shape());
  check_alike(operation, "x", x, name, p);
}

/// Throws unless `lengths`, where given, is i32 [batch]. It may lie on another device than what it
/// belongs to: corpora leave it on the host, which counts with it.
inline void check_lengths(const char* operation, const Tensor& lengths, int64_t batch) {
  if (!lengths.defined()) return;
  check(lengths.dtype() == DType::i32 && lengths.shape() == Shape{batch}, operation,
        ": lengths must be i32 [", batch, "], one for each sample, got ", lengths.dtype(), " ",
        lengths.shape());
}
/// `given`, where it is, on x's device.
inline Tensor beside(const Tensor& x, const Tensor& given) {
  return given.defined() ? given.to(x.device()) : given;
}

/// The non-negative index of dimension `dim`, which may count from the end.
inline int check_dimension(const char* operation, const Shape& shape, int dim) {
  const int index = dim < 0 ? dim + shape.rank() : dim;
  check(index >= 0 && index < shape.rank(), operation, ": shape ", shape, " has no dimension ",
        dim);
  return index;
}

}  // namespace tapeformer
