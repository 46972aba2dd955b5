// ScaleNorm: rows brought to one length, with a single gain.
#include <algorithm>
#include <cmath>

#include "core/cpu/row_sums.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

void scale_norm_forward(const Tensor& x, const Tensor& g, double epsilon, const Tensor& y,
                        const Tensor& rnorm) {
  dispatch_wide("scale_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = rnorm.numel(), C = x.dim(-1);
    const T *px = x.data<T>(), gain = *g.data<T>();
    T *py = y.data<T>(), *pr = rnorm.data<T>();
    const T smallest = static_cast<T>(epsilon);
    parallel_pieces(N, rows_per_piece(C), C, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* row = px + n * C;
        const T norm = std::sqrt(row_sum<T>(C, [=](int64_t i) { return row[i] * row[i]; }));
        const T r = 1 / std::max(norm, smallest);
        row_write(C, py + n * C, false, [=](int64_t i) { return gain * (row[i] * r); });
        pr[n] = r;
      }
    });
  });
}

// y = g u with u = x / |x|: du = (dx - u (u . dx)) / |x|, which turns dy into
//   dx = g / |x| (dy - u (u . dy)), dg = dy . u.
// Where |x| < epsilon the divisor is constant, so the second term is missing.
void scale_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& g, double epsilon,
                         const Tensor& rnorm, const Destination& dx, const Destination& dg) {
  dispatch_wide("scale_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = rnorm.numel(), C = x.dim(-1);
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *pr = rnorm.data<T>(), gain = *g.data<T>();
    T* out = optional_data<T>(dx.tensor);
    const T largest = 1 / static_cast<T>(epsilon);
    const RowSums<T> sums(N, 1);
    sums.add(2 * C, [&](int64_t begin, int64_t end, T* sum) {
      for (int64_t n = begin; n < end; ++n) {
        const T *row = px + n * C, *drow = pdy + n * C, r = pr[n];
        const T along = r * row_sum<T>(C, [=](int64_t i) { return drow[i] * row[i]; });
        *sum += along;
        const T factor = gain * r, back = r < largest ? along * r : T(0);
        if (out)
          row_write(C, out + n * C, dx.accumulate,
                    [=](int64_t i) { return factor * (drow[i] - row[i] * back); });
      }
    });
    sums.join(0, dg);
  });
}

}  // namespace tapeformer::kernels::cpu
