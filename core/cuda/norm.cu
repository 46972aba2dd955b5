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
  float alpha, epsilon;
  T *sum, *y;
  float *mean, *rstd;
};

// One group of threads for each row; the formulas stand in kernels.h.
template <bool centred, class Row, class T>
__global__ void __launch_bounds__(Row::block) norm_forward_kernel(Forward<T> a) {
  constexpr int n = Row::n;
  const size_t row = Row::first_row();
  if (row >= a.rows) return;  // a whole warp, and warps do not wait for each other here
  const int C = a.channels;
  const size_t at = row * C;
  float s[Row::runs][n];
  float total = 0;
  Row::for_each(C, [&](int k, int i) {
    float residual[n] = {};
    read(a.x + at + i, s[k]);
    if (a.residual) read(a.residual + at + i, residual);
    for (int j = 0; j < n; ++j)  // rounded: what backward will read
      total += s[k][j] = to_float(from_float<T>(a.alpha * residual[j] + s[k][j]));
  });
  const float share = 1.0f / C;
  const float mu = centred ? Row::sum(total) * share : 0;
  total = 0;
  Row::for_each(C, [&](int k, int i) {
    if (a.sum) write(a.sum + at + i, s[k]);
    for (int j = 0; j < n; ++j) total += (s[k][j] - mu) * (s[k][j] - mu);
  });
  const float r = 1 / sqrtf(Row::sum(total) * share + a.epsilon);
  Row::for_each(C, [&](int k, int i) {
    float gamma[n], beta[n];
    if (a.gamma) read(a.gamma + i, gamma);
    if (a.beta) read(a.beta + i, beta);
    for (int j = 0; j < n; ++j) {
      s[k][j] = (s[k][j] - mu) * r;
      if (a.gamma) s[k][j] *= gamma[j];
      if (a.beta) s[k][j] += beta[j];
    }
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
    const Forward<T> a{static_cast<size_t>(N),
                       static_cast<int>(C),
                       in<T>(x),
                       in<T>(residual),
                       in<T>(gamma),
                       in<T>(beta),
                       static_cast<float>(alpha),
                       static_cast<float>(epsilon),
                       out<T>(sum),
                       out<T>(y),
                       out<float>(mean),
                       out<float>(rstd)};
    dispatch_row<T>(operation, C, {x, residual, gamma, beta, sum, y}, [&](auto layout) {
      using Row = decltype(layout);
      launch<norm_forward_kernel<centred, Row, T>>(blocks_for(N, Row::rows), Row::block, 0,
                                                   stream(), a);
    });
  });
}

template <class T>
struct Backward {
  size_t rows, groups;
  int channels;
  const T *dy, *s, *gamma;
  const float *mean, *rstd;
  const T* dsum;
  bool detached, accumulate;
  T* ds;
  float *dgamma, *dbeta;  // [groups, C] partial sums, or null
};

// With h = gamma dy and xh = (s - mu) r, the derivative of y = gamma xh + beta through s, mu, r:
//   ds = r (h - mean(h) - xh mean(h xh)), dgamma += dy xh, dbeta += dy
// (Ba et al. 2016, supplement; the term mean(h) comes from mu, so RMS norm lacks it). A group takes
// every groups-th row and sums dgamma and dbeta of its rows in registers, of which one block may
// have all.
template <bool centred, class Row, class T>
__global__ void __launch_bounds__(Row::block, 1) norm_backward_kernel(Backward<T> a) {
  constexpr int n = Row::n;
  const int C = a.channels;
  const size_t group = Row::first_row();
  if (group >= a.groups) return;
  float dgamma[Row::runs][n] = {}, dbeta[Row::runs][n] = {};
  const float share = a.detached ? 0 : 1.0f / C;
  for (size_t row = group; row < a.rows; row += a.groups) {
    const size_t at = row * C;
    const float mu = centred ? a.mean[row] : 0, r = a.rstd[row];
    float h[Row::runs][n], xh[Row::runs][n];
    float sum_h = 0, sum_hx = 0;
    Row::for_each(C, [&](int k, int i) {
      float dy[n], s[n], gamma[n];
      read(a.dy + at + i, dy);
      read(a.s + at + i, s);
      if (a.gamma) read(a.gamma + i, gamma);
      for (int j = 0; j < n; ++j) {
        h[k][j] = a.gamma ? dy[j] * gamma[j] : dy[j];
        xh[k][j] = (s[j] - mu) * r;
        if constexpr (centred) sum_h += h[k][j];
        sum_hx += h[k][j] * xh[k][j];
        dgamma[k][j] += dy[j] * xh[k][j];
        if constexpr (centred) dbeta[k][j] += dy[j];
      }
    });
    if (!a.ds) continue;
    const float mean_h = centred ? Row::sum(sum_h) * share : 0, mean_hx = Row::sum(sum_hx) * share;
    Row::for_each(C, [&](int k, int i) {
      float ds[n], other[n];
      for (int j = 0; j < n; ++j) ds[j] = r * (h[k][j] - mean_h - xh[k][j] * mean_hx);
      if (a.dsum) {
        read(a.dsum + at + i, other);
        for (int j = 0; j < n; ++j) ds[j] += other[j];
      }
      if (a.accumulate) {
        read(a.ds + at + i, other);
        for (int j = 0; j < n; ++j) ds[j] += other[j];
      }
      write(a.ds + at + i, ds);
    });
  }
  Row::for_each(C, [&](int k, int i) {
    for (int j = 0; j < n; ++j) {
      if (a.dgamma) a.dgamma[group * C + i + j] = dgamma[k][j];
      if (centred && a.dbeta) a.dbeta[group * C + i + j] = dbeta[k][j];
    }
  });
}

template <bool centred>
void norm_backward(const char* operation, const Tensor& dy, const Tensor& s, const Tensor& gamma,
                   const Tensor& mean, const Tensor& rstd, bool detached, const Tensor& dsum,
                   const Destination& ds, const Destination& dgamma, const Destination& dbeta) {
  const int64_t N = rows_of(s), C = s.dim(-1);
  constexpr int64_t most_groups = 2048, fewest_rows = 4;
  const int64_t groups = std::clamp<int64_t>((N + fewest_rows - 1) / fewest_rows, 1, most_groups);
  const auto partial = [&](const Destination& d) {
    return d ? Tensor::empty({groups, C}, DType::f32, Device::cuda) : Tensor{};
  };
  const Tensor gains = partial(dgamma), shifts = partial(dbeta);
  dispatch(operation, s.dtype(), [&](auto type) {
    using T = decltype(type);
    const Backward<T> a{static_cast<size_t>(N),
                        static_cast<size_t>(groups),
                        static_cast<int>(C),
                        in<T>(dy),
                        in<T>(s),
                        in<T>(gamma),
                        in<float>(mean),
                        in<float>(rstd),
                        in<T>(dsum),
                        detached,
                        ds.accumulate,
                        out<T>(ds.tensor),
                        out<float>(gains),
                        out<float>(shifts)};
    dispatch_row<T>(operation, C, {dy, s, gamma, dsum, ds.tensor}, [&](auto layout) {
      using Row = decltype(layout);
      launch<norm_backward_kernel<centred, Row, T>>(blocks_for(groups, Row::rows), Row::block, 0,
                                                    stream(), a);
    });
  });
  if (dgamma) sum_middle(gains, 1, groups, C, 1, dgamma);
  if (dbeta) sum_middle(shifts, 1, groups, C, 1, dbeta);
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
