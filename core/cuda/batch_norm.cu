// Batch norm: moments of each channel over the rows that are not padding, and the map that they
// make.
#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// Which rows of x [B,T,C] are real: all, where there are no lengths.
struct RealRows {
  const int32_t* lengths;
  size_t time;

  RealRows(const Tensor& x, const Tensor& given)
      : lengths(in<int32_t>(given)), time(static_cast<size_t>(x.dim(1))) {}
  __device__ bool contains(size_t n) const {
    return !lengths || n % time < static_cast<size_t>(lengths[n / time]);
  }
};

// For each channel: the sum over real rows of x, and how many those are.
template <class T>
struct Totals {
  static constexpr int rows_at_once = 4;
  const T* x;
  size_t width;
  RealRows real;
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[2][n]) const {
    float values[n];
    read(x + row * width + column, values);
    if (!real.contains(row)) return;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      sums[0][k] += values[k];
      sums[1][k] += 1;
    }
  }
};

// The sums of x - mean and of its square. The first is what rounding the mean has left.
template <class T>
struct Squares {
  static constexpr int rows_at_once = 4;
  const T* x;
  size_t width;
  RealRows real;
  const float* mean;  // or null
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[2][n]) const {
    float values[n], means[n] = {};
    read(x + row * width + column, values);
    if (mean) read(mean + column, means);
    if (!real.contains(row)) return;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float distance = values[k] - means[k];
      sums[0][k] += distance;
      sums[1][k] += distance * distance;
    }
  }
};

struct MeanOf : Each {
  const float *total, *count;
  float* mean;
  Out given;
  __device__ void operator()(size_t i) const {
    mean[i] = total[i] / count[i];
    given.write(i, mean[i]);
  }
};

// The corrected two-pass algorithm (Chan, Golub & LeVeque 1983, eq. 1.7): (Q - R^2 / n) / n.
struct VarianceOf : Each {
  const float *rest, *squares, *count;
  bool centred;
  Out variance;
  __device__ void operator()(size_t i) const {
    const float share = 1 / count[i], correction = centred ? rest[i] * rest[i] * share : 0;
    variance.write(i, (squares[i] - correction) * share);
  }
};

// What makes the map of a channel.
struct Channel {
  In mean, variance, gamma;
  float epsilon;
  __device__ float mu(size_t c) const { return mean.data ? mean.read(c) : 0; }
  __device__ float rstd(size_t c) const { return 1 / sqrtf(variance.read(c) + epsilon); }
  __device__ float gain(size_t c) const { return gamma.data ? gamma.read(c) : 1; }
};

// map [3, C]: y = (x - map[0]) map[1] + map[2].
struct ForwardMap : Each {
  Channel channel;
  In beta;
  size_t width;
  float* map;
  __device__ void operator()(size_t c) const {
    map[c] = channel.mu(c);
    map[width + c] = channel.gain(c) * channel.rstd(c);
    map[2 * width + c] = beta.data ? beta.read(c) : 0;
  }
};

template <class T>
struct BatchNormForward : EachInRows {
  const T* x;
  const float* map;
  size_t width;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    float values[n], centre[n], scale[n], shift[n];
    read(x + row * width + column, values);
    read(map + column, centre);
    read(map + width + column, scale);
    read(map + 2 * width + column, shift);
#pragma unroll
    for (int k = 0; k < n; ++k) values[k] = (values[k] - centre[k]) * scale[k] + shift[k];
    write(y + row * width + column, values);
  }
};

// The sums of dy (x - mean) and of dy over all rows, and how many are real.
template <class T>
struct GradientSums {
  static constexpr int rows_at_once = 1;
  const T *dy, *x;
  size_t width;
  RealRows real;
  In mean;
  template <int n>
  __device__ void run(size_t row, size_t column, float (&sums)[3][n]) const {
    float slopes[n], values[n], means[n] = {};
    read(dy + row * width + column, slopes);
    read(x + row * width + column, values);
    if (mean.data) read(mean, column, means);
    const bool counts = real.contains(row);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      sums[0][k] += slopes[k] * (values[k] - means[k]);
      sums[1][k] += slopes[k];
      sums[2][k] += counts;
    }
  }
};

// The gain is the same for all rows, so sum(h) = gamma sum(dy) and sum(h xh) = gamma sum(dy xh),
// and with xh = (x - mean) r, for real rows,
//   dx = gamma r (dy - (x - mean) r^2 sum(dy (x - mean)) / n - sum(dy) / n).
// map [4, C]: dx = map[1] (dy - (x - map[0]) map[2] - map[3]).
struct BackwardMap : Each {
  Channel channel;
  const float *along, *total, *count;  // null where no gradient needs them
  Out dgamma, dbeta;
  size_t width;
  float* map;
  __device__ void operator()(size_t c) const {
    const float r = channel.rstd(c);
    map[c] = channel.mu(c);
    map[width + c] = channel.gain(c) * r;
    if (!count) return;
    if (dgamma.data) dgamma.write(c, r * along[c]);
    if (dbeta.data) dbeta.write(c, total[c]);
    const float share = 1 / count[c];
    map[2 * width + c] = r * r * along[c] * share;
    map[3 * width + c] = channel.mean.data ? total[c] * share : 0;
  }
};

template <class T>
struct BatchNormBackward : EachInRows {
  const T *dy, *x;
  const float* map;
  size_t width;
  RealRows real;
  bool constant;  // the moments are
  Out dx;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    float slopes[n], scale[n];
    read(dy + row * width + column, slopes);
    read(map + width + column, scale);
    if (!constant && real.contains(row)) {
      float values[n], centre[n], along[n], mean[n];
      read(x + row * width + column, values);
      read(map + column, centre);
      read(map + 2 * width + column, along);
      read(map + 3 * width + column, mean);
#pragma unroll
      for (int k = 0; k < n; ++k) slopes[k] -= (values[k] - centre[k]) * along[k] + mean[k];
    }
#pragma unroll
    for (int k = 0; k < n; ++k) slopes[k] *= scale[k];
    write(dx, row * width + column, slopes);
  }
};

Tensor per_channel(int64_t C) { return Tensor::empty({C}, DType::f32, Device::cuda); }

}  // namespace

void batch_moments(const Tensor& x, const Tensor& lengths, const Tensor& mean,
                   const Tensor& variance) {
  const int64_t C = x.dim(-1), N = rows_of(x);
  const RealRows real(x, lengths);
  const Tensor total = per_channel(C), count = per_channel(C), centre = per_channel(C);
  const Tensor rest = per_channel(C), square = per_channel(C);
  dispatch("batch_moments", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool centred = mean.defined();
    sum_columns<pack_of<T>>(1, N, C, Totals<T>{in<T>(x), size(C), real}, {x.raw()},
                            {{total}, {count}});
    if (centred) each(C, MeanOf{{}, in<float>(total), in<float>(count), out<float>(centre), mean});
    sum_columns<pack_of<T>>(
        1, N, C, Squares<T>{in<T>(x), size(C), real, centred ? in<float>(centre) : nullptr},
        {x.raw(), centre.raw()}, {{rest}, {square}});
    each(C,
         VarianceOf{{}, in<float>(rest), in<float>(square), in<float>(count), centred, variance});
  });
}

void batch_norm_forward(const Tensor& x, const Tensor& mean, const Tensor& variance, double epsilon,
                        const Tensor& gamma, const Tensor& beta, const Tensor& y) {
  const int64_t C = x.dim(-1);
  const Channel channel{mean, variance, gamma, static_cast<float>(epsilon)};
  const Tensor map = Tensor::empty({3, C}, DType::f32, Device::cuda);
  each(C, ForwardMap{{}, channel, beta, size(C), out<float>(map)});
  dispatch("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(rows_of(x), C, packed(n, {C}, {x.raw(), y.raw()}),
                    BatchNormForward<T>{{}, in<T>(x), in<float>(map), size(C), out<T>(y)});
  });
}

void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& lengths,
                         const Tensor& mean, const Tensor& variance, double epsilon, bool constant,
                         const Tensor& gamma, const Destination& dx, const Destination& dgamma,
                         const Destination& dbeta) {
  const int64_t C = x.dim(-1);
  const Channel channel{mean, variance, gamma, static_cast<float>(epsilon)};
  const RealRows real(x, lengths);
  const bool sums = (dx && !constant) || dgamma || dbeta;
  const Tensor along = per_channel(C), total = per_channel(C), count = per_channel(C);
  const Tensor map = Tensor::empty({4, C}, DType::f32, Device::cuda);
  dispatch("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (sums)
      sum_columns<pack_of<T>>(1, rows_of(x), C,
                              GradientSums<T>{in<T>(dy), in<T>(x), size(C), real, mean},
                              {dy.raw(), x.raw(), in<void>(mean)}, {{along}, {total}, {count}});
    each(C, BackwardMap{{},
                        channel,
                        in<float>(along),
                        in<float>(total),
                        sums ? in<float>(count) : nullptr,
                        dgamma,
                        dbeta,
                        size(C),
                        out<float>(map)});
    constexpr int n = pack_of<T>;
    if (dx)
      each_in_rows<n>(rows_of(x), C, packed(n, {C}, {dy.raw(), x.raw(), dx.tensor.raw()}),
                      BatchNormBackward<T>{
                          {}, in<T>(dy), in<T>(x), in<float>(map), size(C), real, constant, dx});
  });
}

}  // namespace tapeformer::kernels::cuda
