// Batch norm: moments of each channel over the rows that are not padding, and the map that they
// make. Rows are read in chunks that fit the cache, each column of a chunk being one of many sums.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/cpu/row_sums.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

// Which rows of x [B,T,C] are real: all, where there are no lengths.
struct RealRows {
  const int32_t* lengths;
  int64_t time, rows;

  RealRows(const Tensor& x, const Tensor& given)
      : lengths(optional_data<int32_t>(given)), time(x.dim(1)), rows(x.dim(0) * time) {}
  bool contains(int64_t n) const { return !lengths || n % time < lengths[n / time]; }
  int64_t count(int64_t begin, int64_t end) const {
    int64_t count = 0;
    for (int64_t n = begin; n < end; ++n) count += contains(n);
    return count;
  }
  int64_t count() const { return count(0, rows); }
};

// The moments of one chunk by the corrected two-pass algorithm (Chan, Golub & LeVeque 1983, eq.
// 1.7): m, a mean that may be off by its rounding, R = sum (x - m) and Q = sum (x - m)^2; so the
// mean is m + R / n and the sum of squares around it Q - R^2 / n. Not centred: m = 0, and only Q.
template <class T>
void add_moments(const T* x, int64_t C, bool centred, const RealRows& real, int64_t begin,
                 int64_t end, T* m, T* R, T* Q) {
  const auto each_row = [&](const auto& f) {
    for (int64_t n = begin; n < end; ++n)
      if (real.contains(n)) f(x + n * C);
  };
  if (!centred)
    return each_row(
        [=](const T* row) { row_write(C, Q, true, [=](int64_t i) { return row[i] * row[i]; }); });
  each_row([=](const T* row) { row_write(C, m, true, [=](int64_t i) { return row[i]; }); });
  const T share = T(1) / static_cast<T>(std::max<int64_t>(1, real.count(begin, end)));
  row_write(C, m, false, [=](int64_t i) { return m[i] * share; });
  each_row([=](const T* row) {
    row_sweep(C, [=](int64_t i, int) {
      const T distance = row[i] - m[i];
      R[i] += distance;
      Q[i] += distance * distance;
    });
  });
}

// Channels that are joined at a time.
constexpr int64_t width = 64;

// Mean (optional) and variance of channels [begin, end), at most `width`, from those of the chunks:
// sums of squares around the chunks' means become one around the common mean (the same paper, eq.
// 2.1). counts: the real rows of each chunk, n in all.
template <class T>
void join_moments(const RowSums<T>& sums, const std::vector<int64_t>& counts, int64_t n, int64_t C,
                  int64_t begin, int64_t end, T* mean, T* variance) {
  const int64_t size = end - begin;
  const double share = 1.0 / static_cast<double>(n);
  double centre[width] = {}, squares[width] = {};
  const auto each_chunk = [&](const auto& f) {
    for (int64_t chunk = 0; chunk < sums.chunks(); ++chunk) {
      const T* m = sums.sums_of(chunk) + begin;
      if (counts[chunk]) f(static_cast<double>(counts[chunk]), m, m + C, m + 2 * C);
    }
  };
  if (mean) {
    each_chunk([&](double count, const T* m, const T* R, const T*) {
      row_write(size, centre, true,
                [=](int64_t i) { return (count * m[i] + static_cast<double>(R[i])) * share; });
    });
    row_write(size, mean + begin, false,
              [from = centre](int64_t i) { return static_cast<T>(from[i]); });
  }
  each_chunk([&](double count, const T* m, const T* R, const T* Q) {
    row_write(size, squares, true, [=, one = 1 / count, centre = centre](int64_t i) {
      const double rest = R[i], distance = m[i] + rest * one - centre[i];
      return Q[i] - rest * rest * one + count * distance * distance;
    });
  });
  row_write(size, variance + begin, false,
            [share, from = squares](int64_t i) { return static_cast<T>(share * from[i]); });
}

// What the channels of a row are mapped with.
template <class T>
struct Channels {
  std::vector<T> mean, rstd, gain;  // [C]

  Channels(const Tensor& given_mean, const Tensor& variance, double epsilon, const Tensor& gamma)
      : mean(variance.numel(), 0), rstd(variance.numel()), gain(variance.numel(), 1) {
    const int64_t C = variance.numel();
    if (given_mean.defined()) std::copy_n(given_mean.data<T>(), C, mean.data());
    if (gamma.defined()) std::copy_n(gamma.data<T>(), C, gain.data());
    const T* v = variance.data<T>();
    for (int64_t i = 0; i < C; ++i) rstd[i] = static_cast<T>(1 / std::sqrt(v[i] + epsilon));
  }
};

// {sum dy xh, sum dy} [2, C] over all rows, which are the gradients of gamma and beta too.
template <class T>
std::vector<T> sum_gradients(const T* dy, const T* x, const Channels<T>& channels, int64_t rows,
                             const Destination& dgamma, const Destination& dbeta) {
  const int64_t C = channels.mean.size();
  const T *mu = channels.mean.data(), *r = channels.rstd.data();
  const RowSums<T> sums(rows, 2 * C);
  sums.add(2 * C, [&](int64_t begin, int64_t end, T* sum) {
    for (int64_t n = begin; n < end; ++n)
      row_sweep(C, [=, row = x + n * C, drow = dy + n * C](int64_t i, int) {
        sum[i] += drow[i] * ((row[i] - mu[i]) * r[i]);
        sum[C + i] += drow[i];
      });
  });
  sums.join(0, dgamma);
  sums.join(C, dbeta);
  std::vector<T> totals(2 * C);
  sums.join(0, 2 * C, totals.data(), false);
  return totals;
}

// dx (+)= scale dy - level - slope (x - mean) for real rows, scale dy for padding.
template <class T>
struct InputGradient {
  const T *dy, *x, *mean, *scale, *level, *slope;  // the last four [C]
  bool through;                                    // level and slope are not all 0

  void write(int64_t C, const RealRows& real, const Destination& dx) const {
    T* out = dx.tensor.data<T>();
    parallel_pieces(real.rows, rows_per_piece(C), C, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T *row = x + n * C, *drow = dy + n * C;
        if (through && real.contains(n))
          row_write(C, out + n * C, dx.accumulate, [row, drow, a = *this](int64_t i) {
            return a.scale[i] * drow[i] - a.level[i] - a.slope[i] * (row[i] - a.mean[i]);
          });
        else
          row_write(C, out + n * C, dx.accumulate,
                    [drow, scale = scale](int64_t i) { return scale[i] * drow[i]; });
      }
    });
  }
};

}  // namespace

void batch_moments(const Tensor& x, const Tensor& lengths, const Tensor& mean,
                   const Tensor& variance) {
  dispatch_wide("batch_moments", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t C = x.dim(-1);
    const RealRows real(x, lengths);
    const T* px = x.data<T>();
    T *pm = optional_data<T>(mean), *pv = variance.data<T>();
    const bool centred = pm != nullptr;
    const RowSums<T> sums(real.rows, 3 * C);
    sums.add(2 * C, [&](int64_t begin, int64_t end, T* s) {
      add_moments(px, C, centred, real, begin, end, s, s + C, s + 2 * C);
    });
    std::vector<int64_t> counts;
    for (int64_t chunk = 0; chunk < sums.chunks(); ++chunk)
      counts.push_back(real.count(sums.begin_of(chunk), sums.end_of(chunk)));
    const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    parallel_pieces(C, width, 8 * sums.chunks(), [&](int64_t begin, int64_t end) {
      join_moments(sums, counts, n, C, begin, end, pm, pv);
    });
  });
}

void batch_norm_forward(const Tensor& x, const Tensor& mean, const Tensor& variance, double epsilon,
                        const Tensor& gamma, const Tensor& beta, const Tensor& y) {
  dispatch_wide("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t C = x.dim(-1), N = x.dim(0) * x.dim(1);
    const Channels<T> channels(mean, variance, epsilon, gamma);
    const std::vector<T> zeros(beta.defined() ? 0 : C, 0);
    const T *px = x.data<T>(), *shift = beta.defined() ? beta.data<T>() : zeros.data();
    const T *mu = channels.mean.data(), *r = channels.rstd.data(), *gain = channels.gain.data();
    T* py = y.data<T>();
    parallel_pieces(N, rows_per_piece(C), C, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* row = px + n * C;
        row_write(C, py + n * C, false, [mu, r, gain, shift, row](int64_t i) {
          return gain[i] * ((row[i] - mu[i]) * r[i]) + shift[i];
        });
      }
    });
  });
}

// The gain is the same for all rows, so sum(h) = gamma sum(dy) and sum(h xh) = gamma sum(dy xh):
// the sums that the gradient through the moments needs are those of dbeta and dgamma.
void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& lengths,
                         const Tensor& mean, const Tensor& variance, double epsilon, bool constant,
                         const Tensor& gamma, const Destination& dx, const Destination& dgamma,
                         const Destination& dbeta) {
  dispatch_wide("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t C = x.dim(-1);
    const RealRows real(x, lengths);
    const Channels<T> channels(mean, variance, epsilon, gamma);
    const T *px = x.data<T>(), *pdy = dy.data<T>(), *r = channels.rstd.data();
    const bool through = dx && !constant;
    std::vector<T> totals(2 * C, 0);
    if (through || dgamma || dbeta)
      totals = sum_gradients(pdy, px, channels, real.rows, dgamma, dbeta);
    if (!dx) return;
    std::vector<T> factors(3 * C);
    T *scale = factors.data(), *level = scale + C, *slope = level + C;
    const double share = through ? 1.0 / static_cast<double>(real.count()) : 0;
    for (int64_t i = 0; i < C; ++i) {
      scale[i] = channels.gain[i] * r[i];
      slope[i] = static_cast<T>(share * scale[i] * totals[i] * r[i]);
      level[i] = mean.defined() ? static_cast<T>(share * scale[i] * totals[C + i]) : T(0);
    }
    InputGradient<T>{pdy, px, channels.mean.data(), scale, level, slope, through}.write(C, real,
                                                                                        dx);
  });
}

}  // namespace tapeformer::kernels::cpu
