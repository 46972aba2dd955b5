// Layer norm and RMS norm, alone and fused with the residual add. RMS norm is layer norm without
// the mean and without the shift, so both are one template: `centred` is what tells them apart.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct Forward {
  size_t rows;
  int channels;
  const T *x, *residual, *gamma, *beta;
  float share, alpha, epsilon;  // share: 1 / channels
  T *sum, *y;
  float *mean, *rstd;
};

// One group of threads for each row; the formulas stand in kernels.h.
template <bool centred, class Row, class T>
__global__ void __launch_bounds__(Row::most_block, 1) norm_forward_kernel(Forward<T> a) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row();
  if (row >= a.rows) return;  // a whole warp, and warps do not wait for each other here
  const int C = a.channels;
  const size_t at = row * C;
  const Held<Row, T> x(a.x, at, C), residual(a.residual, at, C);
  float s[Row::runs][n];
  float total = 0;
  Row::for_all(C, [&](int k, int j) {  // rounded: what backward will read
    total += s[k][j] = to_float(from_float<T>(a.alpha * residual(k, j) + x(k, j)));
  });
  const float mu = centred ? Row::sum(total) * a.share : 0;
  total = 0;
  Row::for_each(C, [&](int k, int i) {
    if (a.sum) write(a.sum + at + i, s[k]);
    for (int j = 0; j < n; ++j) total += (s[k][j] - mu) * (s[k][j] - mu);
  });
  const float r = 1 / sqrtf(Row::sum(total) * a.share + a.epsilon);
  const Held<Row, T> gamma(a.gamma, 0, C), beta(a.beta, 0, C);
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j)
      s[k][j] = (s[k][j] - mu) * r * (a.gamma ? gamma(k, j) : 1) + beta(k, j);
    write(a.y + at + i, s[k]);
  });
  if (Row::thread() == 0) {
    if (centred) a.mean[row] = mu;
    a.rstd[row] = r;
  }
}

template <bool centred>
void norm_forward(const char* operation, const Tensor& x, const Tensor& residual, double alpha,
                  const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& sum,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  const int64_t N = rows_of(x), C = x.dim(-1);
  if (N == 0) return;
  dispatch(operation, x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Forward<T> a{size(N),
                       static_cast<int>(C),
                       in<T>(x),
                       in<T>(residual),
                       in<T>(gamma),
                       in<T>(beta),
                       1.0f / static_cast<float>(C),
                       static_cast<float>(alpha),
                       static_cast<float>(epsilon),
                       out<T>(sum),
                       out<T>(y),
                       out<float>(mean),
                       out<float>(rstd)};
    dispatch_row<T>(operation, C, {x, residual, gamma, beta, sum, y}, [&](auto layout) {
      using Row = decltype(layout);
      launch<norm_forward_kernel<centred, Row, T>>(blocks_for(N, Row::rows), Row::block(C), 0,
                                                   stream(), a);
    });
  });
}

// For how many of norm_backward_kernel's largest blocks a multiprocessor has registers.
template <class Row>
constexpr int resident = !Row::warp        ? 1
                         : Row::items == 8 ? 6
                         : Row::n == 1     ? 2
                                           : 3;

template <class T>
struct Backward {
  size_t rows, groups;
  int channels;
  const T *dy, *s, *gamma;
  const float *mean, *rstd;
  const T *added, *before;  // dsum and what stands in ds; where only one is there, it is `added`
  float share;              // 1 / channels; 0 where mean and rstd count as constants
  T* ds;
  float* sums;  // [groups, 1 or 2, C], partial ones of dgamma and of dbeta; or null
};

// With h = gamma dy and xh = (s - mu) r, the derivative of y = gamma xh + beta through s, mu, r:
//   ds = r (h - mean(h) - xh mean(h xh)), dgamma += dy xh, dbeta += dy
// (Ba et al. 2016, supplement; the term mean(h) comes from mu, so RMS norm lacks it). A group takes
// every groups-th row and sums dgamma and dbeta of its rows in registers. All that a row needs is
// read before its sums, so that it is under way together.
template <bool centred, class Row, class T>
__global__ void __launch_bounds__(Row::most_block, resident<Row>)
    norm_backward_kernel(Backward<T> a) {
  constexpr int n = Row::n;
  const int C = a.channels;
  const size_t group = Row::first_row();
  if (group >= a.groups) return;
  float dgamma[Row::runs][n] = {}, dbeta[Row::runs][n] = {};
  for (size_t row = group; row < a.rows; row += a.groups) {
    const size_t at = row * C;
    const float mu = centred ? a.mean[row] : 0, r = a.rstd[row];
    const Held<Row, T> dy(a.dy, at, C), s(a.s, at, C), added(a.added, at, C), gamma(a.gamma, 0, C);
    float ds[Row::runs][n], xh[Row::runs][n];
    float sums[1 + centred] = {};  // of h xh, and of h
    Row::for_all(C, [&](int k, int j) {
      const float h = a.gamma ? dy(k, j) * gamma(k, j) : dy(k, j);
      xh[k][j] = (s(k, j) - mu) * r;
      ds[k][j] = r * h + added(k, j);
      sums[0] += h * xh[k][j];
      dgamma[k][j] += dy(k, j) * xh[k][j];
      if constexpr (centred) {
        sums[1] += h;
        dbeta[k][j] += dy(k, j);
      }
    });
    if (!a.ds) continue;
    Row::sum(sums);
    const float mean_hx = r * sums[0] * a.share, mean_h = centred ? r * sums[centred] * a.share : 0;
    Row::for_each(C, [&](int k, int i) {
      float before[n] = {};
      if (a.before) read(a.before + at + i, before);
      for (int j = 0; j < n; ++j) ds[k][j] += before[j] - (mean_h + xh[k][j] * mean_hx);
      write(a.ds + at + i, ds[k]);
    });
  }
  if (!a.sums) return;
  float* sums = a.sums + group * (1 + centred) * C;
  Row::for_each(C, [&](int k, int i) {
    write(sums + i, dgamma[k]);
    if constexpr (centred) write(sums + C + i, dbeta[k]);
  });
}

template <bool centred>
void norm_backward(const char* operation, const Tensor& dy, const Tensor& s, const Tensor& gamma,
                   const Tensor& mean, const Tensor& rstd, bool detached, const Tensor& dsum,
                   const Destination& ds, const Destination& dgamma, const Destination& dbeta) {
  const int64_t N = rows_of(s), C = s.dim(-1);
  dispatch(operation, s.dtype(), [&](auto type) {
    using T = decltype(type);
    dispatch_row<T>(operation, C, {dy, s, gamma, dsum, ds.tensor}, [&](auto layout) {
      using Row = decltype(layout);
      // One wave of blocks on an H200, and as many on every GPU, since results depend on them.
      constexpr int64_t multiprocessors = 132, fewest_rows = 4;
      const int64_t most_groups =
          multiprocessors * (resident<Row> * Row::most_block / Row::block(C)) * Row::rows;
      const int64_t groups =
          std::clamp<int64_t>((N + fewest_rows - 1) / fewest_rows, 1, most_groups);
      constexpr int kinds = 1 + centred;
      const Tensor sums =
          dgamma || dbeta ? Tensor::empty({groups, kinds, C}, DType::f32, Device::cuda) : Tensor{};
      const Tensor old = ds.accumulate ? ds.tensor : Tensor{};
      const Backward<T> a{size(N),
                          size(groups),
                          static_cast<int>(C),
                          in<T>(dy),
                          in<T>(s),
                          in<T>(gamma),
                          in<float>(mean),
                          in<float>(rstd),
                          in<T>(dsum.defined() ? dsum : old),
                          in<T>(dsum.defined() ? old : Tensor{}),
                          detached ? 0 : 1.0f / static_cast<float>(C),
                          out<T>(ds.tensor),
                          out<float>(sums)};
      launch<norm_backward_kernel<centred, Row, T>>(blocks_for(groups, Row::rows), Row::block(C), 0,
                                                    stream(), a);
      if (!sums.defined()) return;
      const Elements<float, kinds> rows{in<float>(sums), size(C)};
      if constexpr (centred)
        sum_columns<pack_of<float>>(1, groups, C, rows, {rows.x}, {dgamma, dbeta});
      else
        sum_columns<pack_of<float>>(1, groups, C, rows, {rows.x}, {dgamma});
    });
  });
}

}  // namespace

void layer_norm_forward(const Tensor& x, const Tensor& residual, double alpha, const Tensor& gamma,
                        const Tensor& beta, double epsilon, const Tensor& sum, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd) {
  norm_forward<true>("layer_norm", x, residual, alpha, gamma, beta, epsilon, sum, y, mean, rstd);
}

void layer_norm_backward(const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& mean,
                         const Tensor& rstd, bool detached, const Tensor& dsum,
                         const Destination& ds, const Destination& dgamma,
                         const Destination& dbeta) {
  norm_backward<true>("layer_norm", dy, s, gamma, mean, rstd, detached, dsum, ds, dgamma, dbeta);
}

void rms_norm_forward(const Tensor& x, const Tensor& residual, double alpha, const Tensor& gamma,
                      double epsilon, const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  norm_forward<false>("rms_norm", x, residual, alpha, gamma, {}, epsilon, sum, y, {}, rstd);
}

void rms_norm_backward(const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd,
                       const Tensor& dsum, const Destination& ds, const Destination& dgamma) {
  norm_backward<false>("rms_norm", dy, s, gamma, {}, rstd, false, dsum, ds, dgamma, {});
}

}  // namespace tapeformer::kernels::cuda
