// Dynamic tanh: the element-wise function that stands where a norm would.
#include <vector>

#include "core/cpu/row_sums.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

namespace {
// What a tanh costs, in additions.
constexpr int64_t tanh_cost = 8;
}  // namespace

void dyt_forward(const Tensor& x, const Tensor& alpha, const Tensor& gamma, const Tensor& beta,
                 const Tensor& y) {
  dispatch_wide("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t C = x.dim(-1), N = x.numel() / C;
    const T *px = x.data<T>(), *gain = gamma.data<T>(), *shift = beta.data<T>();
    const T a = *alpha.data<T>();
    T* py = y.data<T>();
    parallel_pieces(N, rows_per_piece(C), tanh_cost * C, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* row = px + n * C;
        row_write(C, py + n * C, false, [gain, shift, row, a](int64_t i) {
          return gain[i] * simd::tanh(a * row[i]) + shift[i];
        });
      }
    });
  });
}

// t = tanh(alpha x), dt = (1 - t^2) (alpha dx + x dalpha).
void dyt_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha, const Tensor& gamma,
                  const Destination& dx, const Destination& dalpha, const Destination& dgamma,
                  const Destination& dbeta) {
  dispatch_wide("dyt", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t C = x.dim(-1), N = x.numel() / C;
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *gain = gamma.data<T>();
    const T a = *alpha.data<T>();
    T* out = optional_data<T>(dx.tensor);
    const RowSums<T> sums(N, 2 * C + 1);  // of dgamma, dbeta and dalpha
    sums.add(tanh_cost * C, [&](int64_t begin, int64_t end, T* sum) {
      std::vector<T> scratch(C);
      T* slope = scratch.data();  // h (1 - t^2) of one row
      for (int64_t n = begin; n < end; ++n) {
        const T *row = px + n * C, *drow = pdy + n * C;
        T lanes[row_lanes] = {};
        row_sweep(C, [=, &lanes](int64_t i, int lane) {
          const T t = simd::tanh(a * row[i]);
          slope[i] = gain[i] * drow[i] * (1 - t * t);
          lanes[lane] += slope[i] * row[i];
          sum[i] += drow[i] * t;
          sum[C + i] += drow[i];
        });
        sum[2 * C] += row_total(lanes);
        if (out)
          row_write(C, out + n * C, dx.accumulate, [a, slope](int64_t i) { return a * slope[i]; });
      }
    });
    sums.join(0, dgamma);
    sums.join(C, dbeta);
    sums.join(2 * C, dalpha);
  });
}

}  // namespace tapeformer::kernels::cpu
