// Operations that only move elements, with their backward.
#include <algorithm>

#include "autograd/checks.h"
#include "autograd/ops.h"

namespace tapeformer {

Tensor reshape(const Tensor& x, const Shape& shape) {
  check(shape.numel() == x.numel(), "reshape: ", x.numel(), " elements of shape ", x.shape(),
        " do not fill shape ", shape);
  if (shape == x.shape()) return x;
  const Tensor y = x.detach().view(shape);
  record("reshape", {x}, {y}, [](BackwardPass& pass) { pass.pass_on(0, pass.gradient()); });
  return y;
}

Tensor reshape(const Tensor& x, std::initializer_list<int64_t> sizes) {
  return reshape(x, infer_shape("reshape", x.numel(), sizes));
}

Tensor permute(const Tensor& x, const std::vector<int>& order) {
  std::vector<int> inverse(order.size(), -1);
  bool valid = static_cast<int>(order.size()) == x.rank();
  for (size_t i = 0; valid && i < order.size(); ++i) {
    valid = order[i] >= 0 && order[i] < x.rank() && inverse[order[i]] == -1;
    if (valid) inverse[order[i]] = static_cast<int>(i);
  }
  check(valid, "permute: the order ", order, " does not name each dimension of ", x.shape(),
        " once");
  Shape shape;
  for (const int dim : order) shape.push_back(x.dim(dim));
  const Tensor y = x.empty_like(shape);
  kernels::permute(x, order, Destination{y});
  record("permute", {x}, {y}, [inverse](BackwardPass& pass) {
    kernels::permute(pass.gradient(), inverse, pass.destination(0));
  });
  return y;
}

Tensor transpose(const Tensor& x, int dim0, int dim1) {
  std::vector<int> order(x.rank());
  for (int i = 0; i < x.rank(); ++i) order[i] = i;
  std::swap(order[check_dimension("transpose", x.shape(), dim0)],
            order[check_dimension("transpose", x.shape(), dim1)]);
  return permute(x, order);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end) {
  dim = check_dimension("slice", x.shape(), dim);
  check(0 <= begin && begin <= end && end <= x.dim(dim), "slice: [", begin, ", ", end,
        ") is no range of dimension ", dim, " of shape ", x.shape());
  Tensor y;
  if (dim == 0) {
    y = x.detach().rows(begin, end);  // shares its memory
  } else {
    y = x.empty_like(x.shape().with(dim, end - begin));
    kernels::slice_read(x, dim, begin, Destination{y});
  }
  record("slice", {x}, {y}, [dim, begin](BackwardPass& pass) {
    kernels::slice_backward(pass.gradient(), dim, begin, pass.destination(0));
  });
  return y;
}

Tensor concat(const std::vector<Tensor>& parts, int dim) {
  check(!parts.empty(), "concat: needs at least one tensor");
  const Tensor& first = parts[0];
  dim = check_dimension("concat", first.shape(), dim);
  std::vector<int64_t> starts;
  int64_t size = 0;
  for (const Tensor& part : parts) {
    check_alike("concat", "the first", first, "another", part);
    check(part.rank() == first.rank() && part.shape().with(dim, 0) == first.shape().with(dim, 0),
          "concat: shapes differ beyond dimension ", dim, ": ", first.shape(), " and ",
          part.shape());
    starts.push_back(size);
    size += part.dim(dim);
  }
  const Tensor y = first.empty_like(first.shape().with(dim, size));
  for (size_t i = 0; i < parts.size(); ++i)
    kernels::slice_write(parts[i], dim, starts[i], Destination{y});
  record("concat", parts, std::span(&y, 1), [dim, starts](BackwardPass& pass) {
    for (size_t i = 0; i < starts.size(); ++i)
      if (pass.needs(i)) kernels::slice_read(pass.gradient(), dim, starts[i], pass.destination(i));
  });
  return y;
}

Tensor stack(const std::vector<Tensor>& parts, int dim) {
  check(!parts.empty(), "stack: needs at least one tensor");
  const Shape& shape = parts[0].shape();
  const int at = dim < 0 ? dim + shape.rank() + 1 : dim;
  check(at >= 0 && at <= shape.rank(), "stack: shape ", shape, " takes a new dimension at 0 to ",
        shape.rank(), ", got ", dim);
  Shape with_one = shape.range(0, at);
  with_one.push_back(1);
  for (int i = at; i < shape.rank(); ++i) with_one.push_back(shape[i]);
  std::vector<Tensor> widened;
  for (const Tensor& part : parts) {
    check(part.shape() == shape, "stack: shapes differ: ", shape, " and ", part.shape());
    widened.push_back(reshape(part, with_one));
  }
  return concat(widened, at);
}

}  // namespace tapeformer
