// Matrix products, linear layers and SwiGLU's gate, each with its backward.
#include "autograd/checks.h"
#include "autograd/common.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

// The sizes of a stack of matrices; none for a single matrix.
Shape leading(const Tensor& x) { return x.shape().range(0, x.rank() - 2); }

Shape product_shape(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  check(a.rank() >= 2 && b.rank() >= 2, "matmul: needs matrices, at least two dimensions each: a ",
        a.shape(), ", b ", b.shape());
  check_floating("matmul", a);
  check_alike("matmul", "a", a, "b", b);
  const int64_t inner_a = a.dim(transpose_a ? -2 : -1), inner_b = b.dim(transpose_b ? -1 : -2);
  check(inner_a == inner_b, "matmul: inner sizes differ: a ", a.shape(),
        transpose_a ? " transposed" : "", ", b ", b.shape(), transpose_b ? " transposed" : "");
  check(a.rank() == 2 || b.rank() == 2 || leading(a) == leading(b),
        "matmul: leading sizes differ: a ", a.shape(), ", b ", b.shape(),
        "; they must be equal, or one of the two a single matrix");
  Shape shape = a.rank() == 2 ? leading(b) : leading(a);
  shape.push_back(a.dim(transpose_a ? -1 : -2));
  shape.push_back(b.dim(transpose_b ? -2 : -1));
  return shape;
}

// Matrix i of a stack; a single matrix serves every i.
Tensor matrix(const Tensor& x, int64_t i) {
  if (x.rank() == 2) return x;
  const Shape shape{x.dim(-2), x.dim(-1)};
  return x.detach().view({-1, x.dim(-2), x.dim(-1)}).rows(i, i + 1).view(shape);
}

// d (+)= op(x) op(y), summed over the stack where d is a single matrix that served all of it.
void product_into(const Tensor& x, bool transpose_x, const Tensor& y, bool transpose_y,
                  const Destination& d) {
  if (!d) return;
  const bool stacked = x.rank() > 2 || y.rank() > 2;
  if (d.tensor.rank() > 2 || !stacked) return kernels::matmul(x, transpose_x, y, transpose_y, 1, d);
  if (x.rank() > 2 && y.rank() > 2 && transpose_x && !transpose_y)  // the sum is one tall product
    return kernels::matmul(as_rows(x), true, as_rows(y), false, 1, d);
  const int64_t batch = leading(x.rank() > 2 ? x : y).numel();
  if (batch == 0 && !d.accumulate) d.tensor.fill(0);
  for (int64_t i = 0; i < batch; ++i)
    kernels::matmul(matrix(x, i), transpose_x, matrix(y, i), transpose_y, 1,
                    Destination{d.tensor, d.accumulate || i > 0});
}

}  // namespace

// c = op(a) op(b): d op(a) = dc op(b)^T and d op(b) = op(a)^T dc, themselves transposed where the
// argument was.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const Tensor c = a.empty_like(product_shape(a, transpose_a, b, transpose_b));
  kernels::matmul(a, transpose_a, b, transpose_b, 1, Destination{c});
  record("matmul", {a, b}, {c}, [=](BackwardPass& pass) {
    const Tensor& dc = pass.gradient();
    // A single matrix may be a weight, or have served a whole stack.
    const auto into = [&](size_t i, const Tensor& x) {
      return x.rank() == 2 ? pass.wide_destination(i) : pass.destination(i);
    };
    if (transpose_a)
      product_into(b, transpose_b, dc, true, into(0, a));
    else
      product_into(dc, false, b, !transpose_b, into(0, a));
    if (transpose_b)
      product_into(dc, true, a, transpose_a, into(1, b));
    else
      product_into(a, !transpose_a, dc, false, into(1, b));
  });
  return c;
}

// With z = x W^T + b and y = f(z): dz = dy f'(z), dx = dz W, dW = dz^T x, db = sum over rows of dz.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation) {
  check(weight.rank() == 2, "linear: weight must be [outputs, inputs], got ", weight.shape());
  check(x.rank() >= 1 && x.dim(-1) == weight.dim(1), "linear: inner sizes differ: x ", x.shape(),
        ", weight ", weight.shape());
  check_floating("linear", x);
  check_alike("linear", "x", x, "weight", weight);
  if (bias.defined()) {
    check(bias.shape() == Shape{weight.dim(0)}, "linear: bias must be [", weight.dim(0),
          "] beside weight ", weight.shape(), ", got ", bias.shape());
    check_alike("linear", "x", x, "bias", bias);
  }
  const bool activated = activation != Activation::none;
  const Tensor y = x.empty_like(x.shape().with(-1, weight.dim(0)));
  const Tensor z = activated && recording({x, weight, bias}) ? y.empty_like() : Tensor{};
  const Tensor rows = as_rows(x);
  kernels::linear_forward(rows, weight, bias, activation, z.defined() ? as_rows(z) : z, as_rows(y));
  record("linear", {x, weight, bias}, {y},
         [rows, weight, z, activation, activated](BackwardPass& pass) {
           const Tensor& dy = pass.gradient();
           const Tensor dz = activated ? dy.empty_like() : dy;
           kernels::bias_activation_backward(as_rows(dy), activated ? as_rows(z) : z, activation,
                                             activated ? as_rows(dz) : Tensor{},
                                             pass.wide_destination(2));
           product_into(as_rows(dz), false, weight, false, as_rows(pass.destination(0)));
           product_into(as_rows(dz), true, rows, false, pass.wide_destination(1));
         });
  return y;
}

Tensor swiglu(const Tensor& x) {
  check_floating("swiglu", x);
  check(x.rank() >= 1 && x.dim(-1) % 2 == 0,
        "swiglu: the last dimension holds two halves, so its size must be even, got ", x.shape());
  const Tensor y = x.empty_like(x.shape().with(-1, x.dim(-1) / 2));
  kernels::swiglu_forward(x, y);
  record("swiglu", {x}, {y}, [x](BackwardPass& pass) {
    kernels::swiglu_backward(pass.gradient(), x, pass.destination(0));
  });
  return y;
}

}  // namespace tapeformer
