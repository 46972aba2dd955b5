// Layer norm and RMS norm, alone and fused with the residual add. RMS norm is layer norm without
// the mean and without the shift, so both are one template: `centred` is what tells them apart.
//
// A row is read from memory once; its mean, variance and result are then computed from the cache.
// The variance is the mean of (s - mu)^2: the one-pass form mean(s^2) - mu^2 loses every digit
// where the mean is large (Chan, Golub & LeVeque 1983, "Algorithms for computing the sample
// variance", section 1). Reading the cache again for it costs little; what costs is that the memory
// has nothing to do meanwhile. So the sums of forward fetch what is read and written a little
// later, and those of backward, which read more, what is written.
#include <cmath>

#include "core/cpu/row_sums.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

// A gain that was not given is a row of ones, a shift a row of zeros.
Tensor or_constant(const Tensor& given, double constant, const Tensor& x) {
  return given.defined() ? given : Tensor::full({x.dim(-1)}, constant, x.dtype());
}

// What a row fetches: the elements that come distance_bytes after its own, nothing where these
// would end beyond the last row. A row of 128 channels takes less time than the memory to answer,
// so its own would come too late; of 1, 2, 4 and 8 KB ahead, 2 were the fastest (bench_norms).
// Tensors of up to cached_bytes are taken to lie in a cache, where fetching would only cost.
class Fetch {
 public:
  Fetch(int64_t n, int64_t channels, int64_t element_bytes)
      : ahead_(distance_bytes / element_bytes),
        end_(n * channels * element_bytes > cached_bytes ? (n - 1) * channels : 0) {}

  /// Where row_sweep fetches from, for the row that begins at this element; `rows` may be null.
  template <class T>
  T* operator()(T* rows, int64_t at) const {
    return rows && at + ahead_ <= end_ ? rows + at + ahead_ : nullptr;
  }

 private:
  static constexpr int64_t distance_bytes = 2048, cached_bytes = 1 << 20;
  int64_t ahead_, end_;
};

int64_t rows_of(const Tensor& x) { return x.dim(-1) ? x.numel() / x.dim(-1) : 0; }

template <class T>
struct Forward {
  int64_t channels;
  const T *x, *residual, *gamma, *beta;
  Wide<T> alpha, epsilon;
  T *sum, *y;
  Wide<T>*mean, *rstd;
  Fetch fetch;
};

// Writes s = alpha residual + x and returns the sum of s - first for the mean, where `centred`, or
// of s^2 otherwise: then it is the only sum.
template <bool centred, class T>
Wide<T> add_residual(const Forward<T>& a, int64_t at, Wide<T> first, T* sum) {
  const T *x = a.x + at, *residual = a.residual + at;
  const auto term = [=, alpha = a.alpha](int64_t i) {
    sum[i] = alpha * residual[i] + x[i];
    const Wide<T> s = sum[i];
    return centred ? s - first : s * s;
  };
  return row_sum<Wide<T>>(a.channels, term, a.fetch(a.x, at), a.fetch(a.residual, at),
                          a.fetch(a.sum, at), centred ? nullptr : a.fetch(a.y, at));
}

template <bool centred, class T>
void forward_row(const Forward<T>& a, int64_t n) {
  using W = Wide<T>;
  const int64_t C = a.channels, at = n * C;
  const T *s = a.x + at, *gamma = a.gamma, *beta = a.beta;
  const W share = W(1) / C;
  T* y = a.y + at;
  W mu = 0, total = 0;
  // Summed as distances from the first element: so a row far from zero keeps its digits.
  const W first = a.residual ? a.alpha * a.residual[at] + s[0] : W(s[0]);
  if (a.residual) {
    T* sum = a.sum ? a.sum + at : y;
    total = add_residual<centred>(a, at, first, sum);
    s = sum;
  } else if (centred) {
    total = row_sum<W>(
        C, [=](int64_t i) { return s[i] - first; }, a.fetch(a.x, at));
  }
  if (centred) mu = first + total * share;
  const auto square = [=](int64_t i) { return (s[i] - mu) * (s[i] - mu); };
  if (centred)
    total = row_sum<W>(C, square, a.fetch(a.y, at));
  else if (!a.residual)
    total = row_sum<W>(C, square, a.fetch(a.x, at), a.fetch(a.y, at));
  const W r = 1 / std::sqrt(total * share + a.epsilon);
  if constexpr (centred) {
    a.mean[n] = mu;
    row_write(C, y, false, [=](int64_t i) { return gamma[i] * ((s[i] - mu) * r) + beta[i]; });
  } else {
    row_write(C, y, false, [=](int64_t i) { return gamma[i] * (s[i] * r); });
  }
  a.rstd[n] = r;
}

template <bool centred>
void norm_forward(const char* operation, const Tensor& x, const Tensor& residual, double alpha,
                  const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& sum,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  dispatch_floating(operation, x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = rows_of(x), C = x.dim(-1);
    if (N == 0) return;
    const Tensor gain = or_constant(gamma, 1, x);
    const Tensor shift = centred ? or_constant(beta, 0, x) : Tensor{};
    const Forward<T> a{C,
                       x.data<T>(),
                       optional_data<T>(residual),
                       gain.data<T>(),
                       optional_data<T>(shift),
                       static_cast<Wide<T>>(alpha),
                       static_cast<Wide<T>>(epsilon),
                       optional_data<T>(sum),
                       y.data<T>(),
                       optional_data<Wide<T>>(mean),
                       rstd.data<Wide<T>>(),
                       Fetch(N, C, sizeof(T))};
    parallel_pieces(N, rows_per_piece(C), C, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) forward_row<centred>(a, n);
    });
  });
}

template <class T>
struct Backward {
  int64_t channels;
  const T *dy, *s, *gamma;
  const Wide<T>*mean, *rstd;
  const T* dsum;
  T* ds;
  Fetch fetch;
  bool accumulate, detached;
};

// With h = gamma dy and xh = (s - mu) r, the derivative of y = gamma xh + beta through s, mu, r:
//   ds = r (h - mean(h) - xh mean(h xh)), dgamma += dy xh, dbeta += dy
// (Ba et al. 2016, supplement; the term mean(h) comes from mu, so RMS norm lacks it).
template <bool centred, class T>
void backward_row(const Backward<T>& a, int64_t n, Wide<T>* dgamma, Wide<T>* dbeta) {
  using W = Wide<T>;
  const int64_t C = a.channels, at = n * C;
  const T *dy = a.dy + at, *s = a.s + at, *gamma = a.gamma;
  const W mu = centred ? a.mean[n] : W(0), r = a.rstd[n];
  W sum_h[row_lanes] = {}, sum_hx[row_lanes] = {};
  const auto sums = [&](int64_t i, int lane) {
    const W h = gamma[i] * dy[i], xh = (s[i] - mu) * r;
    sum_hx[lane] += h * xh;
    dgamma[i] += dy[i] * xh;
    if constexpr (centred) {
      sum_h[lane] += h;
      dbeta[i] += dy[i];
    }
  };
  row_sweep(C, sums, a.fetch(a.ds, at));
  if (!a.ds) return;
  const W share = a.detached ? W(0) : W(1) / C;
  const W mean_h = row_total(sum_h) * share, mean_hx = row_total(sum_hx) * share;
  const auto ds = [=](int64_t i) {
    return r * (gamma[i] * dy[i] - mean_h - (s[i] - mu) * r * mean_hx);
  };
  if (a.dsum) {
    const T* dsum = a.dsum + at;
    row_write(C, a.ds + at, a.accumulate, [=](int64_t i) { return dsum[i] + ds(i); });
  } else {
    row_write(C, a.ds + at, a.accumulate, ds);
  }
}

template <bool centred>
void norm_backward(const char* operation, const Tensor& dy, const Tensor& s, const Tensor& gamma,
                   const Tensor& mean, const Tensor& rstd, bool detached, const Tensor& dsum,
                   const Destination& ds, const Destination& dgamma, const Destination& dbeta) {
  dispatch_floating(operation, s.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = rows_of(s), C = s.dim(-1);
    const Tensor gain = or_constant(gamma, 1, s);
    const Backward<T> a{C,
                        dy.data<T>(),
                        s.data<T>(),
                        gain.data<T>(),
                        optional_data<Wide<T>>(mean),
                        rstd.data<Wide<T>>(),
                        optional_data<T>(dsum),
                        optional_data<T>(ds.tensor),
                        Fetch(N, C, sizeof(T)),
                        ds.accumulate,
                        detached};
    const RowSums<Wide<T>> sums(N, 2 * C);  // of dgamma and dbeta
    sums.add(C, [&](int64_t begin, int64_t end, Wide<T>* sum) {
      for (int64_t n = begin; n < end; ++n) backward_row<centred>(a, n, sum, sum + C);
    });
    sums.join(0, dgamma);
    sums.join(C, dbeta);
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

}  // namespace tapeformer::kernels::cpu
