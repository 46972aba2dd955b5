// Embedding, cross-entropy, and the vocabulary projection fused with it.
#include <algorithm>

#include "autograd/checks.h"
#include "autograd/common.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

// x holds the scores, or what they are made of: one row for each target.
void check_targets(const char* operation, const Tensor& x, int64_t classes, const Tensor& targets,
                   const CrossEntropyOptions& options) {
  check(targets.dtype() == DType::i32, operation, ": targets must be i32, got ", targets.dtype());
  check(targets.shape() == shape_of_rows(x), operation, ": needs targets of shape ",
        shape_of_rows(x), ", one for each row, got ", targets.shape());
  check(options.smoothing >= 0 && options.smoothing <= 1, operation,
        ": smoothing must lie in [0, 1], got ", options.smoothing);
  if (targets.device() != Device::cpu) return;  // there the kernel would have to look
  const int32_t* target = targets.data<int32_t>();
  for (int64_t n = 0; n < targets.numel(); ++n)
    check((target[n] >= 0 && target[n] < classes) || target[n] == options.ignore_index, operation,
          ": target ", target[n], " at position ", n, " is none of the ", classes,
          " classes, nor ignore_index ", options.ignore_index);
}

constexpr double f16_divisor = 0x1p-15;

// What a loss over rows needs: how many count, and the loss of each. The rows are counted where
// the targets lie, so that with targets on the host backward knows it without asking the device.
struct RowLosses {
  Tensor targets, known_count, count, each, divisor;
  CrossEntropyOptions options;

  RowLosses(const Tensor& like, const Tensor& targets, const CrossEntropyOptions& options)
      : targets(targets.view({targets.numel()}).to(like.device())),
        known_count(Tensor::empty({1}, wide(like.dtype()), targets.device())),
        each(Tensor::empty({targets.numel()}, wide(like.dtype()), like.device())),
        options(options) {
    kernels::count_targets(targets, options.ignore_index, known_count);
    count = known_count.to(like.device());
    // An f16 could not hold the small ones of dlogits = (p - q) / count. Divided by this number the
    // largest possible are 2^15, half of what it can hold; backward makes up for it.
    if (like.dtype() == DType::f16)
      divisor = Tensor::full({1}, f16_divisor, count.dtype(), like.device());
  }
  /// Rows [begin, end), whose scores are `logits`.
  void compute(int64_t begin, int64_t end, const Tensor& logits, const Tensor& dlogits) const {
    kernels::cross_entropy(logits, targets.rows(begin, end), divisor.defined() ? divisor : count,
                           options.ignore_index, options.smoothing, each.rows(begin, end), dlogits);
  }
  /// What dlogits, given the gradient of the mean, is to be multiplied with.
  double scale_of(double gradient) const {
    return gradient * (divisor.defined() ? f16_divisor / known_count.item() : 1);
  }
  Tensor mean() const {
    const Tensor total = each.empty_like(Shape{}), result = each.empty_like(Shape{});
    kernels::sum_forward(each, 0, 1.0, Destination{total});
    kernels::binary_forward(total, count.view(Shape{}), kernels::Binary::div, result);
    return result;
  }
};

}  // namespace

Tensor embedding(const Tensor& table, const Tensor& indices) {
  check_floating("embedding", table);
  check(table.rank() == 2, "embedding: the table must be [V, C], got ", table.shape());
  check(indices.dtype() == DType::i32, "embedding: indices must be i32, got ", indices.dtype());
  const int64_t V = table.dim(0);
  if (indices.device() == Device::cpu) {
    const int32_t* index = indices.data<int32_t>();
    for (int64_t n = 0; n < indices.numel(); ++n)
      check(index[n] >= 0 && index[n] < V, "embedding: index ", index[n], " at position ", n,
            " is outside the table of ", V, " rows");
  }
  Shape shape = indices.shape();
  shape.push_back(table.dim(1));
  const Tensor y = table.empty_like(shape), here = indices.to(table.device());
  kernels::embedding_forward(table, here, y);
  record("embedding", {table}, {y}, [here](BackwardPass& pass) {
    kernels::embedding_backward(pass.gradient(), here, pass.wide_destination(0));
  });
  return y;
}

// The loss of a row and its gradient come out of the same visit, so the forward pass computes both.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_floating("cross_entropy", logits);
  if (is_16bit(logits.dtype())) return cross_entropy(widened(logits), targets, options);
  check(logits.rank() >= 1 && logits.dim(-1) >= 1,
        "cross_entropy: logits must be [.., V] with V > 0, got ", logits.shape());
  check_targets("cross_entropy", logits, logits.dim(-1), targets, options);
  const RowLosses losses(logits, targets, options);
  const Tensor dlogits = recording({logits}) ? logits.empty_like() : Tensor{};
  losses.compute(0, targets.numel(), logits, dlogits);
  const Tensor loss = losses.mean();
  record("cross_entropy", {logits}, {loss},
         [dlogits](BackwardPass& pass) { pass.pass_on_scaled(0, dlogits, pass.gradient_item()); });
  return loss;
}

namespace {

// Logits of x's rows, wide, and when they are recorded memory for their gradient in x's dtype: the
// same, if it can be.
struct Logits {
  Tensor values, gradients;
  Logits(const Tensor& x, int64_t rows, int64_t classes, bool records)
      : values(Tensor::empty({rows, classes}, wide(x.dtype()), x.device())) {
    if (records) gradients = is_16bit(x.dtype()) ? x.empty_like({rows, classes}) : values;
  }
  /// The first rows of both.
  Logits(const Logits& all, int64_t rows) : values(all.values.rows(0, rows)) {
    if (all.gradients.defined()) gradients = all.gradients.rows(0, rows);
  }
};

// All logits at once; backward multiplies:
// dx = dlogits W, dW = dlogits^T x.
Tensor project_whole(const Tensor& x, const Tensor& weight, const RowLosses& losses) {
  const Tensor rows = as_rows(x);
  const int64_t N = rows.dim(0);
  const Logits logits(x, N, weight.dim(0), recording({x, weight}));
  kernels::matmul(rows, false, weight, true, 1.0, Destination{logits.values});
  losses.compute(0, N, logits.values, logits.gradients);
  const Tensor loss = losses.mean();
  record("linear_cross_entropy", {x, weight}, {loss},
         [rows, weight, losses, dlogits = logits.gradients](BackwardPass& pass) {
           const double scale = losses.scale_of(pass.gradient_item());
           if (const Destination dx = as_rows(pass.destination(0)))
             kernels::matmul(dlogits, false, weight, false, scale, dx);
           if (const Destination dweight = pass.wide_destination(1))
             kernels::matmul(dlogits, true, rows, false, scale, dweight);
         });
  return loss;
}

// `chunk` rows of logits at a time. A chunk's logits are gone after it, so its share of dx and dW
// is computed at once, for a gradient of the loss of 1; backward only scales.
Tensor project_in_chunks(const Tensor& x, const Tensor& weight, const RowLosses& losses,
                         int64_t chunk) {
  const Tensor rows = as_rows(x);
  const int64_t N = rows.dim(0);
  const bool records = recording({x, weight});
  const auto sums_for = [&](const Tensor& input) {
    if (!records || !needs_gradient(input)) return Tensor{};
    return Tensor::empty(input.shape(), wide(input.dtype()), input.device());
  };
  const Tensor dx = sums_for(x), dweight = sums_for(weight);
  const Logits buffer(x, chunk, weight.dim(0), records);
  for (int64_t begin = 0; begin < N; begin += chunk) {
    const int64_t end = std::min(N, begin + chunk);
    const Tensor some = rows.rows(begin, end);
    const Logits logits(buffer, end - begin);
    kernels::matmul(some, false, weight, true, 1.0, Destination{logits.values});
    losses.compute(begin, end, logits.values, logits.gradients);
    if (dx.defined()) {
      const Tensor part = as_rows(dx).rows(begin, end);
      kernels::matmul(logits.gradients, false, weight, false, 1.0, Destination{part});
    }
    if (dweight.defined())
      kernels::matmul(logits.gradients, true, some, false, 1.0, Destination{dweight, begin > 0});
  }
  const Tensor loss = losses.mean();
  record("linear_cross_entropy", {x, weight}, {loss}, [losses, dx, dweight](BackwardPass& pass) {
    const double scale = losses.scale_of(pass.gradient_item());
    pass.pass_on_scaled(0, dx, scale);
    pass.pass_on_scaled(1, dweight, scale);
  });
  return loss;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, size_t chunk_bytes) {
  check_floating("linear_cross_entropy", x);
  check(weight.rank() == 2 && weight.dim(0) >= 1,
        "linear_cross_entropy: weight must be [V, C] with V > 0, got ", weight.shape());
  check(x.rank() >= 1 && x.dim(-1) == weight.dim(1), "linear_cross_entropy: inner sizes differ: x ",
        x.shape(), ", weight ", weight.shape());
  check_alike("linear_cross_entropy", "x", x, "weight", weight);
  const int64_t N = shape_of_rows(x).numel(), V = weight.dim(0);
  check_targets("linear_cross_entropy", x, V, targets, options);
  const RowLosses losses(x, targets, options);
  if (chunk_bytes == 0) chunk_bytes = size_t{64} << (x.device() == Device::cpu ? 20 : 24);
  const size_t row_bytes = V * size_of(wide(x.dtype()));
  const auto fitting = static_cast<int64_t>(std::max<size_t>(1, chunk_bytes / row_bytes));
  if (N <= fitting) return project_whole(x, weight, losses);
  const int64_t chunks = (N + fitting - 1) / fitting;
  return project_in_chunks(x, weight, losses, (N + chunks - 1) / chunks);  // of about equal size
}

}  // namespace tapeformer
