// Reductions with their backward. The formulas stand at the kernels.
#include <limits>

#include "autograd/checks.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

// x as one row. Reads past gradients, so only for kernels.
Tensor flat(const Tensor& x) { return x.detach().view(Shape{x.numel()}); }

Shape reduced(const Shape& shape, int dim, bool keep_dim) {
  if (keep_dim) return shape.with(dim, 1);
  Shape result = shape.range(0, dim);
  for (int i = dim + 1; i < shape.rank(); ++i) result.push_back(shape[i]);
  return result;
}

Tensor scaled_sum(const char* operation, const Tensor& x, double scale) {
  const Tensor y = x.empty_like(Shape{});
  kernels::sum_forward(flat(x), 0, scale, Destination{y});
  record(operation, {x}, {y}, [scale](BackwardPass& pass) {
    const Destination dx = pass.destination(0);
    kernels::sum_backward(pass.gradient(), 0, scale, Destination{flat(dx.tensor), dx.accumulate});
  });
  return y;
}

Tensor scaled_sum(const char* operation, const Tensor& x, int dim, bool keep_dim, double scale) {
  const Tensor y = x.empty_like(reduced(x.shape(), dim, keep_dim));
  kernels::sum_forward(x, dim, scale, Destination{y});
  record(operation, {x}, {y}, [dim, scale](BackwardPass& pass) {
    kernels::sum_backward(pass.gradient(), dim, scale, pass.destination(0));
  });
  return y;
}

// The gradient goes to the first of the largest elements.
Tensor largest(const Tensor& x, const Tensor& seen, int dim, const Shape& shape) {
  check(seen.dim(dim) > 0, "max: no elements to choose from in shape ", x.shape());
  check(seen.dim(dim) <= std::numeric_limits<int32_t>::max(), "max: more than 2^31 elements in ",
        x.shape());
  const Tensor y = x.empty_like(shape);
  const Tensor index = Tensor::empty(shape, DType::i32, x.device());
  kernels::max_forward(seen, dim, y, index);
  record("max", {x}, {y}, [index, dim, seen = seen.shape()](BackwardPass& pass) {
    const Destination dx = pass.destination(0);
    kernels::max_backward(pass.gradient(), index, dim,
                          Destination{dx.tensor.view(seen), dx.accumulate});
  });
  return y;
}

}  // namespace

Tensor sum(const Tensor& x) {
  check_floating("sum", x);
  return scaled_sum("sum", x, 1);
}

Tensor mean(const Tensor& x) {
  check_floating("mean", x);
  return scaled_sum("mean", x, 1.0 / static_cast<double>(x.numel()));
}

Tensor max(const Tensor& x) {
  check_floating("max", x);
  if (is_16bit(x.dtype())) return cast(max(widened(x)), x.dtype());
  return largest(x, flat(x), 0, Shape{});
}

Tensor sum(const Tensor& x, int dim, bool keep_dim) {
  check_floating("sum", x);
  return scaled_sum("sum", x, check_dimension("sum", x.shape(), dim), keep_dim, 1);
}

Tensor mean(const Tensor& x, int dim, bool keep_dim) {
  check_floating("mean", x);
  dim = check_dimension("mean", x.shape(), dim);
  return scaled_sum("mean", x, dim, keep_dim, 1.0 / static_cast<double>(x.dim(dim)));
}

Tensor max(const Tensor& x, int dim, bool keep_dim) {
  check_floating("max", x);
  if (is_16bit(x.dtype())) return cast(max(widened(x), dim, keep_dim), x.dtype());
  dim = check_dimension("max", x.shape(), dim);
  return largest(x, x, dim, reduced(x.shape(), dim, keep_dim));
}

}  // namespace tapeformer
