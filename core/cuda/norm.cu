// Layer norm and RMS norm, alone and fused with the residual add. RMS norm is layer norm without the
// mean and without the shift, so both are one template: `centred` is what tells them apart.
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
  const size_t n = Row::first_row();
  if (n >= a.rows) return;  // a whole warp, and warps do not wait for each other here
  const size_t at = n * a.channels;
  float s[Row::items];
  float total = 0;
  Row::for_each(a.channels, [&](int k, int i) {
    s[k] = to_float(a.x[at + i]);
    if (a.residual) {
      const T sum = from_float<T>(a.alpha * to_float(a.residual[at + i]) + s[k]);
      if (a.sum) a.sum[at + i] = sum;
      s[k] = to_float(sum);  // what backward will read
    }
    total += s[k];
  });
  const float share = 1.0f / a.channels;
  const float mu = centred ? Row::sum(total) * share : 0;
  total = 0;
  Row::for_each(a.channels, [&](int k, int) { total += (s[k] - mu) * (s[k] - mu); });
  const float r = 1 / sqrtf(Row::sum(total) * share + a.epsilon);
  Row::for_each(a.channels, [&](int k, int i) {
    float y = (s[k] - mu) * r;
    if (a.gamma) y *= to_float(a.gamma[i]);
    if (a.beta) y += to_float(a.beta[i]);
    a.y[at + i] = from_float<T>(y);
  });
  if (Row::thread() == 0) {
    if (centred) a.mean[n] = mu;
    a.rstd[n] = r;
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
    dispatch_row(operation, C, [&](auto layout) {
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
// every groups-th row and sums dgamma and dbeta of its rows in registers, of which one block may have
// all.
template <bool centred, class Row, class T>
__global__ void __launch_bounds__(Row::block, 1) norm_backward_kernel(Backward<T> a) {
  const size_t group = Row::first_row();
  if (group >= a.groups) return;
  float dgamma[Row::items] = {}, dbeta[Row::items] = {};
  const float share = a.detached ? 0 : 1.0f / a.channels;
  for (size_t n = group; n < a.rows; n += a.groups) {
    const size_t at = n * a.channels;
    const float mu = centred ? a.mean[n] : 0, r = a.rstd[n];
    float h[Row::items], xh[Row::items];
    float sum_h = 0, sum_hx = 0;
    Row::for_each(a.channels, [&](int k, int i) {
      const float dy = to_float(a.dy[at + i]);
      h[k] = a.gamma ? dy * to_float(a.gamma[i]) : dy;
      xh[k] = (to_float(a.s[at + i]) - mu) * r;
      if constexpr (centred) sum_h += h[k];
      sum_hx += h[k] * xh[k];
      dgamma[k] += dy * xh[k];
      if constexpr (centred) dbeta[k] += dy;
    });
    if (!a.ds) continue;
    const float mean_h = centred ? Row::sum(sum_h) * share : 0, mean_hx = Row::sum(sum_hx) * share;
    Row::for_each(a.channels, [&](int k, int i) {
      float ds = r * (h[k] - mean_h - xh[k] * mean_hx);
      if (a.dsum) ds += to_float(a.dsum[at + i]);
      if (a.accumulate) ds += to_float(a.ds[at + i]);
      a.ds[at + i] = from_float<T>(ds);
    });
  }
  Row::for_each(a.channels, [&](int k, int i) {
    if (a.dgamma) a.dgamma[group * a.channels + i] = dgamma[k];
    if (centred && a.dbeta) a.dbeta[group * a.channels + i] = dbeta[k];
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
    dispatch_row(operation, C, [&](auto layout) {
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
