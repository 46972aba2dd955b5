// ScaleNorm: rows brought to one length, with a single gain.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class Row, class T>
__global__ void __launch_bounds__(Row::most_block, 1)
    scale_norm_forward_kernel(const T* x, size_t rows, int C, In g, float smallest, T* y,
                              Out rnorm) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row();
  if (row >= rows) return;  // a whole warp, and warps do not wait for each other here
  const Held<Row, T> values(x, row * C, C);
  float s[Row::runs][n];
  float square = 0;
  Row::for_all(C, [&](int k, int j) {
    s[k][j] = values(k, j);
    square += s[k][j] * s[k][j];
  });
  const float r = 1 / fmaxf(sqrtf(Row::sum(square)), smallest), gain = g.read(0);
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j) s[k][j] = gain * (s[k][j] * r);
    write(y + row * C + i, s[k]);
  });
  if (Row::thread() == 0) rnorm.write(row, r);
}

// y = g u with u = x / |x|: du = (dx - u (u . dx)) / |x|, which turns dy into
//   dx = g / |x| (dy - u (u . dy)), dg = dy . u.
// Where |x| < epsilon the divisor is constant, so the second term is missing.
template <class Row, class T>
__global__ void __launch_bounds__(Row::most_block, 1)
    scale_norm_backward_kernel(const T* dy, const T* x, size_t rows, int C, In g, float largest,
                               In rnorm, T* dx, bool accumulate, float* along_rows) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row();
  if (row >= rows) return;
  const size_t at = row * C;
  const Held<Row, T> values(x, at, C), slopes(dy, at, C), before(accumulate ? dx : nullptr, at, C);
  float s[Row::runs][n], d[Row::runs][n];
  float along = 0;
  Row::for_all(C, [&](int k, int j) {
    s[k][j] = values(k, j);
    d[k][j] = slopes(k, j);
    along += s[k][j] * d[k][j];
  });
  const float r = rnorm.read(row);
  along = r * Row::sum(along);
  if (Row::thread() == 0) along_rows[row] = along;
  if (!dx) return;
  const float factor = g.read(0) * r, back = r < largest ? along * r : 0;
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j) s[k][j] = before(k, j) + factor * (d[k][j] - s[k][j] * back);
    write(dx + at + i, s[k]);
  });
}

}  // namespace

void scale_norm_forward(const Tensor& x, const Tensor& g, double epsilon, const Tensor& y,
                        const Tensor& rnorm) {
  const int64_t N = rnorm.numel(), C = x.dim(-1);
  if (N == 0) return;
  dispatch("scale_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    dispatch_row<T>("scale_norm", C, {x, y}, [&](auto layout) {
      using Row = decltype(layout);
      launch<scale_norm_forward_kernel<Row, T>>(
          blocks_for(N, Row::rows), Row::block(C), 0, stream(), in<T>(x), size(N),
          static_cast<int>(C), In(g), static_cast<float>(epsilon), out<T>(y), Out(rnorm));
    });
  });
}

void scale_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& g, double epsilon,
                         const Tensor& rnorm, const Destination& dx, const Destination& dg) {
  const int64_t N = rnorm.numel(), C = x.dim(-1);
  const Tensor along = Tensor::empty({N}, DType::f32, Device::cuda);
  dispatch("scale_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (N == 0) return;
    dispatch_row<T>("scale_norm", C, {dy, x, dx.tensor}, [&](auto layout) {
      using Row = decltype(layout);
      launch<scale_norm_backward_kernel<Row, T>>(
          blocks_for(N, Row::rows), Row::block(C), 0, stream(), in<T>(dy), in<T>(x), size(N),
          static_cast<int>(C), In(g), 1 / static_cast<float>(epsilon), In(rnorm), out<T>(dx.tensor),
          dx.accumulate, out<float>(along));
    });
  });
  if (dg) sum_middle(along, 1, N, 1, 1, dg);
}

}  // namespace tapeformer::kernels::cuda
