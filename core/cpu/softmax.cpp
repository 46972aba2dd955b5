// Softmax and log-softmax over the last dimension. The largest element is subtracted first, so that
// no exponential overflows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/cpu/simd.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

// Calls f(T{}, n, C) for every row n of x [N, C], where T is the element type.
template <class F>
void for_rows(const char* operation, const Tensor& x, const F& f) {
  dispatch_wide(operation, x.dtype(), [&](auto type) {
    const int64_t C = x.dim(-1);
    if (x.numel() == 0) return;
    parallel_pieces(x.numel() / C, std::max<int64_t>(1, 4096 / C), 4 * C,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t n = begin; n < end; ++n) f(type, n, C);
                    });
  });
}

template <class T>
void softmax_row(int64_t C, const T* x, T* y) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T largest = row_max<T>(C, [=](int64_t i) { return x[i]; });
  if (largest == lowest) {  // nothing to choose from; but a NaN stays one
    for (int64_t i = 0; i < C; ++i) y[i] = x[i] == lowest ? T(0) : x[i];
    return;
  }
  const T sum = row_sum<T>(C, [=](int64_t i) { return y[i] = simd::exp(x[i] - largest); });
  const T scale = 1 / sum;
  row_write(C, y, false, [=](int64_t i) { return y[i] * scale; });
}

template <class T>
void log_softmax_row(int64_t C, const T* x, T* y) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T largest = row_max<T>(C, [=](int64_t i) { return x[i]; });
  if (largest == lowest) {  // the logarithm of softmax's zeros
    std::copy_n(x, C, y);
    return;
  }
  const T sum = row_sum<T>(C, [=](int64_t i) { return simd::exp(x[i] - largest); });
  const T log_sum = std::log(sum);  // apart from `largest`, beside which it may be small
  row_write(C, y, false, [=](int64_t i) { return (x[i] - largest) - log_sum; });
}

}  // namespace

void softmax_forward(const Tensor& x, const Tensor& y) {
  for_rows("softmax", x, [&](auto type, int64_t n, int64_t C) {
    using T = decltype(type);
    softmax_row(C, x.data<T>() + n * C, y.data<T>() + n * C);
  });
}

// From dy_i / dx_j = y_i (delta_ij - y_j).
void softmax_backward(const Tensor& dy, const Tensor& y, const Destination& dx) {
  for_rows("softmax", y, [&](auto type, int64_t n, int64_t C) {
    using T = decltype(type);
    const T *dy_row = dy.data<T>() + n * C, *y_row = y.data<T>() + n * C;
    const T dot = row_sum<T>(C, [=](int64_t i) { return dy_row[i] * y_row[i]; });
    row_write(C, dx.tensor.data<T>() + n * C, dx.accumulate,
              [=](int64_t i) { return y_row[i] * (dy_row[i] - dot); });
  });
}

void log_softmax_forward(const Tensor& x, const Tensor& y) {
  for_rows("log_softmax", x, [&](auto type, int64_t n, int64_t C) {
    using T = decltype(type);
    log_softmax_row(C, x.data<T>() + n * C, y.data<T>() + n * C);
  });
}

// From dy_i / dx_j = delta_ij - softmax(x)_j, and softmax(x) = exp(y).
void log_softmax_backward(const Tensor& dy, const Tensor& y, const Destination& dx) {
  for_rows("log_softmax", y, [&](auto type, int64_t n, int64_t C) {
    using T = decltype(type);
    const T *dy_row = dy.data<T>() + n * C, *y_row = y.data<T>() + n * C;
    const T total = row_sum<T>(C, [=](int64_t i) { return dy_row[i]; });
    row_write(C, dx.tensor.data<T>() + n * C, dx.accumulate,
              [=](int64_t i) { return dy_row[i] - simd::exp(y_row[i]) * total; });
  });
}

}  // namespace tapeformer::kernels::cpu
