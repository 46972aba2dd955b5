// Softmax and log-softmax over any dimension; both save only their result.
#include "autograd/checks.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

// The kernels work on the last dimension; any other is moved there and back.
template <class F>
Tensor over_dimension(const char* operation, const Tensor& x, int dim, const F& over_last) {
  check_floating(operation, x);
  const int index = check_dimension(operation, x.shape(), dim);
  if (is_16bit(x.dtype()))
    return cast(over_dimension(operation, widened(x), dim, over_last), x.dtype());
  if (index == x.rank() - 1) return over_last(x);
  return transpose(over_last(transpose(x, index, -1)), index, -1);
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) {
  return over_dimension("softmax", x, dim, [](const Tensor& x) {
    const Tensor y = x.empty_like();
    kernels::softmax_forward(x, y);
    record("softmax", {x}, {y}, [y](BackwardPass& pass) {
      kernels::softmax_backward(pass.gradient(), y, pass.destination(0));
    });
    return y;
  });
}

Tensor log_softmax(const Tensor& x, int dim) {
  return over_dimension("log_softmax", x, dim, [](const Tensor& x) {
    const Tensor y = x.empty_like();
    kernels::log_softmax_forward(x, y);
    record("log_softmax", {x}, {y}, [y](BackwardPass& pass) {
      kernels::log_softmax_backward(pass.gradient(), y, pass.destination(0));
    });
    return y;
  });
}

}  // namespace tapeformer
