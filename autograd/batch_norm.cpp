// Batch norm and the moments that it divides by. The formulas stand at the kernels.
#include <algorithm>

#include "autograd/checks.h"
#include "autograd/common.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

void check_batch(const char* operation, const Tensor& x, const Tensor& lengths) {
  check_floating(operation, x);
  check(x.rank() == 3, operation, ": needs x [B, T, C], got ", x.shape());
  check_lengths(operation, lengths, x.dim(0));
}

int64_t count_rows(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return x.dim(0) * x.dim(1);
  int64_t rows = 0;
  for (const int64_t length : lengths.to_vector<int32_t>())
    rows += std::clamp<int64_t>(length, 0, x.dim(1));
  return rows;
}

}  // namespace

Moments batch_moments(const Tensor& x, const Tensor& lengths, bool centred) {
  check_batch("batch_moments", x, lengths);
  const int64_t rows = count_rows(x, lengths);
  check(rows > 0, "batch_moments: no row of x ", x.shape(),
        " is left, so there are no moments; give at least one sample a length above 0");
  if (is_16bit(x.dtype())) return batch_moments(widened(x), lengths, centred);
  const Shape channels{x.dim(-1)};
  const Moments moments{centred ? x.empty_like(channels) : Tensor{}, x.empty_like(channels), rows};
  kernels::batch_moments(x, beside(x, lengths), moments.mean, moments.variance);
  return moments;
}

Tensor batch_norm(const Tensor& x, const Tensor& lengths, const Moments& moments, bool constant,
                  const Tensor& gamma, const Tensor& beta, double epsilon) {
  check_batch("batch_norm", x, lengths);
  check(epsilon >= 0, "batch_norm: epsilon must not be negative, got ", epsilon);
  const Tensor mean = moments.mean, variance = moments.variance;
  check(variance.defined(), "batch_norm: needs a variance; batch_moments() computes one");
  if (is_16bit(x.dtype()))
    return cast(
        batch_norm(widened(x), lengths, moments, constant, widened(gamma), widened(beta), epsilon),
        x.dtype());
  check_channels("batch_norm", "the variance", x, variance);
  check_channels("batch_norm", "the mean", x, mean);
  check_channels("batch_norm", "gamma", x, gamma);
  check_channels("batch_norm", "beta", x, beta);
  const Tensor y = x.empty_like();
  kernels::batch_norm_forward(x, mean, variance, epsilon, gamma, beta, y);
  record("batch_norm", {x, gamma, beta}, {y}, [=](BackwardPass& pass) {
    write_together<3>(pass, 0, {x, gamma, beta}, WideFrom{1}, [&](const auto& d) {
      kernels::batch_norm_backward(pass.gradient(), x, beside(x, lengths), mean, variance, epsilon,
                                   constant, gamma, d[0], d[1], d[2]);
    });
  });
  return y;
}

}  // namespace tapeformer
