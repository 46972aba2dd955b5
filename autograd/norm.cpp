// Norms of single rows: layer norm and RMS norm, alone and fused with the residual add, ScaleNorm
// and dynamic tanh. The formulas stand at the kernels.
#include "autograd/checks.h"
#include "autograd/common.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

void check_norm(const char* operation, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                double epsilon) {
  check_floating(operation, x);
  check(x.rank() >= 1 && x.dim(-1) >= 1, operation,
        ": needs at least one channel in the last dimension, got shape ", x.shape());
  check(epsilon >= 0, operation, ": epsilon must not be negative, got ", epsilon);
  check_channels(operation, "gamma", x, gamma);
  check_channels(operation, "beta", x, beta);
}

void check_summands(const char* operation, const Tensor& residual, const Tensor& x) {
  check(residual.shape() == x.shape(), operation, ": shapes differ: residual ", residual.shape(),
        ", x ", x.shape());
  check_alike(operation, "residual", residual, "x", x);
}

void check_scalar(const char* operation, const char* name, const Tensor& x, const Tensor& p) {
  check(p.shape() == Shape{1}, operation, ": ", name, " must be [1], got ", p.shape());
  check_alike(operation, "x", x, name, p);
}

// One number for each row.
Tensor empty_statistics(const Tensor& x) {
  return Tensor::empty({x.numel() / x.dim(-1)}, wide(x.dtype()), x.device());
}

// Backward of sum = alpha residual + x (inputs 0 and 1) and y = norm(sum) (outputs 0 and 1).
// norm_backward(dy, dsum, ds) computes ds = dsum + the gradient through the norm; dx is ds and
// dresidual is alpha ds.
template <class F>
void add_norm_backward(BackwardPass& pass, double alpha, const F& norm_backward) {
  const Tensor dsum = pass.gradient(0), dy = pass.gradient(1);
  Tensor ds = dsum;
  if (dy.defined()) {
    ds = pass.needs(0) || pass.needs(1) ? dy.empty_like() : Tensor{};
    norm_backward(dy, dsum, Destination{ds});
  }
  pass.pass_on(1, ds);
  pass.pass_on_scaled(0, ds, alpha);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                  bool detached) {
  check_norm("layer_norm", x, gamma, beta, epsilon);
  const Tensor y = x.empty_like(), mean = empty_statistics(x), rstd = empty_statistics(x);
  kernels::layer_norm_forward(x, Tensor{}, 1.0, gamma, beta, epsilon, Tensor{}, y, mean, rstd);
  record("layer_norm", {x, gamma, beta}, {y}, [=](BackwardPass& pass) {
    write_together<3>(pass, 0, {x, gamma, beta}, WideFrom{1}, [&](const auto& d) {
      kernels::layer_norm_backward(pass.gradient(), x, gamma, mean, rstd, detached, Tensor{}, d[0],
                                   d[1], d[2]);
    });
  });
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& gamma, double epsilon) {
  check_norm("rms_norm", x, gamma, {}, epsilon);
  const Tensor y = x.empty_like(), rstd = empty_statistics(x);
  kernels::rms_norm_forward(x, Tensor{}, 1.0, gamma, epsilon, Tensor{}, y, rstd);
  record("rms_norm", {x, gamma}, {y}, [=](BackwardPass& pass) {
    write_together<2>(pass, 0, {x, gamma}, WideFrom{1}, [&](const auto& d) {
      kernels::rms_norm_backward(pass.gradient(), x, gamma, rstd, Tensor{}, d[0], d[1]);
    });
  });
  return y;
}

SumAndNorm add_layer_norm(const Tensor& residual, const Tensor& x, double alpha,
                          const Tensor& gamma, const Tensor& beta, double epsilon, bool detached) {
  check_norm("add_layer_norm", x, gamma, beta, epsilon);
  check_summands("add_layer_norm", residual, x);
  const Tensor sum = x.empty_like(), y = x.empty_like();
  const Tensor mean = empty_statistics(x), rstd = empty_statistics(x);
  kernels::layer_norm_forward(x, residual, alpha, gamma, beta, epsilon, sum, y, mean, rstd);
  record("add_layer_norm", {residual, x, gamma, beta}, {sum, y},
         [alpha, sum, gamma, beta, mean, rstd, detached](BackwardPass& pass) {
           add_norm_backward(
               pass, alpha, [&](const Tensor& dy, const Tensor& dsum, const Destination& ds) {
                 write_together<2>(pass, 2, {gamma, beta}, WideFrom{0}, [&](const auto& d) {
                   kernels::layer_norm_backward(dy, sum, gamma, mean, rstd, detached, dsum, ds,
                                                d[0], d[1]);
                 });
               });
         });
  return {sum, y};
}

SumAndNorm add_rms_norm(const Tensor& residual, const Tensor& x, double alpha, const Tensor& gamma,
                        double epsilon) {
  check_norm("add_rms_norm", x, gamma, {}, epsilon);
  check_summands("add_rms_norm", residual, x);
  const Tensor sum = x.empty_like(), y = x.empty_like(), rstd = empty_statistics(x);
  kernels::rms_norm_forward(x, residual, alpha, gamma, epsilon, sum, y, rstd);
  record("add_rms_norm", {residual, x, gamma}, {sum, y},
         [alpha, sum, gamma, rstd](BackwardPass& pass) {
           add_norm_backward(pass, alpha,
                             [&](const Tensor& dy, const Tensor& dsum, const Destination& ds) {
                               kernels::rms_norm_backward(dy, sum, gamma, rstd, dsum, ds,
                                                          pass.wide_destination(2));
                             });
         });
  return {sum, y};
}

Tensor scale_norm(const Tensor& x, const Tensor& g, double epsilon) {
  check_norm("scale_norm", x, {}, {}, epsilon);
  check_scalar("scale_norm", "g", x, g);
  if (is_16bit(x.dtype())) return cast(scale_norm(widened(x), widened(g), epsilon), x.dtype());
  const Tensor y = x.empty_like(), rnorm = empty_statistics(x);
  kernels::scale_norm_forward(x, g, epsilon, y, rnorm);
  record("scale_norm", {x, g}, {y}, [=](BackwardPass& pass) {
    write_together<2>(pass, 0, {x, g}, WideFrom{1}, [&](const auto& d) {
      kernels::scale_norm_backward(pass.gradient(), x, g, epsilon, rnorm, d[0], d[1]);
    });
  });
  return y;
}

Tensor dyt(const Tensor& x, const Tensor& alpha, const Tensor& gamma, const Tensor& beta) {
  check_norm("dyt", x, gamma, beta, 0);
  check_scalar("dyt", "alpha", x, alpha);
  check(gamma.defined() && beta.defined(), "dyt: needs gamma and beta [", x.dim(-1),
        "]; give ones and zeros where none is meant");
  if (is_16bit(x.dtype()))
    return cast(dyt(widened(x), widened(alpha), widened(gamma), widened(beta)), x.dtype());
  const Tensor y = x.empty_like();
  kernels::dyt_forward(x, alpha, gamma, beta, y);
  record("dyt", {x, alpha, gamma, beta}, {y}, [x, alpha, gamma, beta](BackwardPass& pass) {
    write_together<4>(pass, 0, {x, alpha, gamma, beta}, WideFrom{1}, [&](const auto& d) {
      kernels::dyt_backward(pass.gradient(), x, alpha, gamma, d[0], d[1], d[2], d[3]);
    });
  });
  return y;
}

}  // namespace tapeformer
