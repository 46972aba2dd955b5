// Element-wise operations with their backward. The formulas stand at the kernels.
#include "autograd/checks.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

using kernels::Binary;
using kernels::Unary;

// Where the gradient of input i goes; wide where it is summed because the input was repeated.
Destination summed_destination(BackwardPass& pass, size_t i) {
  const bool repeated = pass.numel(i) != pass.gradient().numel();
  return repeated ? pass.wide_destination(i) : pass.destination(i);
}

Tensor unary(const char* operation, const Tensor& x, Unary f) {
  check_floating(operation, x);
  const Tensor y = x.empty_like();
  kernels::unary_forward(x, y, f);
  const bool of_output = kernels::derivative_reads_output(f);
  record(operation, {x}, {y},
         [f, x = of_output ? Tensor{} : x, y = of_output ? y : Tensor{}](BackwardPass& pass) {
           kernels::unary_backward(pass.gradient(), x, y, f, pass.destination(0));
         });
  return y;
}

// Which operands the backward of a binary operation reads.
struct Saved {
  Tensor a, b;
};
Saved save(Binary op, const Tensor& a, const Tensor& b) {
  if (op == Binary::add || op == Binary::sub) return {};
  if (op != Binary::mul) return {a, b};
  return {needs_gradient(b) ? a : Tensor{}, needs_gradient(a) ? b : Tensor{}};
}

Tensor binary(const char* operation, const Tensor& a, const Tensor& b, Binary op) {
  check_floating(operation, a);
  check_alike(operation, "a", a, "b", b);
  const Tensor y = a.empty_like(broadcast_shapes(operation, a.shape(), b.shape()));
  kernels::binary_forward(a, b, op, y);
  if (!Tape::current()) return y;
  // A sum of equal shapes hands its gradient on as it is.
  const bool linear = op == Binary::add || op == Binary::sub;
  if (linear && a.shape() == b.shape()) {
    record(operation, {a, b}, {y}, [sign = op == Binary::add ? 1 : -1](BackwardPass& pass) {
      pass.pass_on(0, pass.gradient());
      pass.pass_on_scaled(1, pass.gradient(), sign);
    });
  } else {
    record(operation, {a, b}, {y}, [saved = save(op, a, b), op](BackwardPass& pass) {
      for (const size_t i : {0, 1})
        if (pass.needs(i))
          kernels::binary_backward(pass.gradient(), saved.a, saved.b, op, i == 0,
                                   summed_destination(pass, i));
    });
  }
  return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary("add", a, b, Binary::add); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary("sub", a, b, Binary::sub); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary("mul", a, b, Binary::mul); }
Tensor div(const Tensor& a, const Tensor& b) { return binary("div", a, b, Binary::div); }
Tensor pow(const Tensor& a, const Tensor& b) { return binary("pow", a, b, Binary::pow); }

Tensor pow(const Tensor& x, double exponent) {
  check_floating("pow", x);
  if (is_16bit(x.dtype())) return cast(pow(widened(x), exponent), x.dtype());
  const Tensor y = x.empty_like();
  kernels::power_forward(x, exponent, y);
  record("pow", {x}, {y}, [x, exponent](BackwardPass& pass) {
    kernels::power_backward(pass.gradient(), x, exponent, pass.destination(0));
  });
  return y;
}

Tensor affine(const Tensor& x, double scale, double shift) {
  check_floating("affine", x);
  const Tensor y = x.empty_like();
  kernels::affine(x, scale, shift, Destination{y});
  record("affine", {x}, {y},
         [scale](BackwardPass& pass) { pass.pass_on_scaled(0, pass.gradient(), scale); });
  return y;
}

Tensor neg(const Tensor& x) { return affine(x, -1, 0); }
Tensor exp(const Tensor& x) { return unary("exp", x, Unary::exp); }
Tensor log(const Tensor& x) { return unary("log", x, Unary::log); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", x, Unary::sqrt); }
Tensor tanh(const Tensor& x) { return unary("tanh", x, Unary::tanh); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", x, Unary::sigmoid); }
Tensor relu(const Tensor& x) { return unary("relu", x, Unary::relu); }
Tensor gelu(const Tensor& x) { return unary("gelu", x, Unary::gelu); }
Tensor gelu_tanh(const Tensor& x) { return unary("gelu_tanh", x, Unary::gelu_tanh); }
Tensor silu(const Tensor& x) { return unary("silu", x, Unary::silu); }

namespace {

Tensor choose(const char* operation, const Tensor& condition, const Tensor& a, const Tensor& b,
              const Shape& shape) {
  const Tensor y = a.empty_like(shape);
  kernels::where_forward(condition, a, b, y);
  record(operation, {a, b}, {y}, [condition](BackwardPass& pass) {
    for (const size_t i : {0, 1})
      if (pass.needs(i))
        kernels::where_backward(pass.gradient(), condition, i == 0, summed_destination(pass, i));
  });
  return y;
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check(condition.dtype() == DType::i32, "where: the condition must be i32, got ",
        condition.dtype());
  check_floating("where", a);
  check_alike("where", "a", a, "b", b);
  check_devices("where", "a", a, "condition", condition);
  const Shape values = broadcast_shapes("where", a.shape(), b.shape());
  return choose("where", condition, a, b, broadcast_shapes("where", condition.shape(), values));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check(mask.dtype() == DType::i32, "masked_fill: the mask must be i32, got ", mask.dtype());
  check_floating("masked_fill", x);
  check_devices("masked_fill", "x", x, "mask", mask);
  check(broadcast_shapes("masked_fill", x.shape(), mask.shape()) == x.shape(),
        "masked_fill: a mask of shape ", mask.shape(), " is larger than x ", x.shape());
  return choose("masked_fill", mask, Tensor::full({}, value, x.dtype(), x.device()), x, x.shape());
}

Tensor padding_mask(const Tensor& lengths, int64_t T, Device device) {
  std::vector<int32_t> mask;
  for (const int32_t length : lengths.to_vector<int32_t>())
    for (int64_t t = 0; t < T; ++t) mask.push_back(t >= length);
  return Tensor::from(mask, {lengths.numel(), T}).to(device);
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_floating("dropout", x);
  check(p >= 0 && p < 1, "dropout: the probability must be in [0, 1), got ", p);
  if (!training || p == 0) return x;
  const RandomKey key = RandomScope::next_key("dropout");
  const Tensor y = x.empty_like();
  kernels::dropout(x, p, key, Destination{y});
  record("dropout", {x}, {y}, [p, key](BackwardPass& pass) {
    kernels::dropout(pass.gradient(), p, key, pass.destination(0));
  });
  return y;
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  check(dtype != DType::i32 || !needs_gradient(x),
        "cast: integers carry no gradient; use cast(x.detach(), DType::i32)");
  const Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  kernels::copy(x, y);
  record("cast", {x}, {y}, [](BackwardPass& pass) { pass.pass_on(0, pass.gradient()); });
  return y;
}

Tensor widened(const Tensor& x) { return x.defined() ? cast(x, wide(x.dtype())) : x; }

}  // namespace tapeformer
