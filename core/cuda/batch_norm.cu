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
  const T* x;
  size_t channels;
  RealRows real;
  __device__ void operator()(size_t row, size_t column, float (&sum)[2]) const {
    if (!real.contains(row)) return;
    sum[0] += to_float(x[row * channels + column]);
    sum[1] += 1;
  }
};

// The sums of x - mean and of its square. The first is what rounding the mean has left.
template <class T>
struct Squares {
  const T* x;
  size_t channels;
  RealRows real;
  const float* mean;  // or null
  __device__ void operator()(size_t row, size_t column, float (&sum)[2]) const {
    if (!real.contains(row)) return;
    const float distance = to_float(x[row * channels + column]) - (mean ? mean[column] : 0);
    sum[0] += distance;
    sum[1] += distance * distance;
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

// What the channels of a row are mapped with.
struct Channels {
  In mean, variance, gamma;
  float epsilon;
  __device__ float mu(size_t i) const { return mean.data ? mean.read(i) : 0; }
  __device__ float rstd(size_t i) const { return 1 / sqrtf(variance.read(i) + epsilon); }
  __device__ float gain(size_t i) const { return gamma.data ? gamma.read(i) : 1; }
};

template <class T>
struct BatchNormForward : Each {
  const T* x;
  size_t width;
  Channels channels;
  In beta;
  T* y;
  __device__ void operator()(size_t i) const {
    const size_t c = i % width;
    const float xh = (to_float(x[i]) - channels.mu(c)) * channels.rstd(c);
    y[i] = from_float<T>(channels.gain(c) * xh + (beta.data ? beta.read(c) : 0));
  }
};

// The sums of dy xh and dy over all rows, and how many are real.
template <class T>
struct GradientSums {
  const T *dy, *x;
  size_t width;
  RealRows real;
  Channels channels;
  __device__ void operator()(size_t row, size_t c, float (&sum)[3]) const {
    const float d = to_float(dy[row * width + c]);
    sum[0] += d * ((to_float(x[row * width + c]) - channels.mu(c)) * channels.rstd(c));
    sum[1] += d;
    sum[2] += real.contains(row);
  }
};

// The gain is the same for all rows, so sum(h) = gamma sum(dy) and sum(h xh) = gamma sum(dy xh).
template <class T>
struct BatchNormBackward : Each {
  const T *dy, *x;
  size_t width;
  RealRows real;
  Channels channels;
  const float *sum_dyx, *sum_dy, *count;  // null where the moments are constant
  Out dx;
  __device__ void operator()(size_t i) const {
    const size_t c = i % width;
    const float r = channels.rstd(c), scale = channels.gain(c) * r;
    float slope = to_float(dy[i]);
    if (count && real.contains(i / width)) {
      const float share = 1 / count[c], xh = (to_float(x[i]) - channels.mu(c)) * r;
      slope -= xh * sum_dyx[c] * share;
      if (channels.mean.data) slope -= sum_dy[c] * share;
    }
    dx.write(i, scale * slope);
  }
};

Tensor per_channel(int64_t C) { return Tensor::empty({C}, DType::f32, Device::cuda); }
size_t size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

void batch_moments(const Tensor& x, const Tensor& lengths, const Tensor& mean,
                   const Tensor& variance) {
  const int64_t C = x.dim(-1);
  const SumPlan plan(1, x.dim(0) * x.dim(1), C);
  const RealRows real(x, lengths);
  const Tensor total = per_channel(C), count = per_channel(C), centre = per_channel(C);
  dispatch("batch_moments", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool centred = mean.defined();
    const Sums<2> totals(plan, Totals<T>{in<T>(x), size(C), real});
    totals.join(0, {total});
    totals.join(1, {count});
    if (centred) each(C, MeanOf{{}, in<float>(total), in<float>(count), out<float>(centre), mean});
    const Sums<2> squares(
        plan, Squares<T>{in<T>(x), size(C), real, centred ? in<float>(centre) : nullptr});
    const Tensor rest = per_channel(C), square = per_channel(C);
    squares.join(0, {rest});
    squares.join(1, {square});
    each(C,
         VarianceOf{{}, in<float>(rest), in<float>(square), in<float>(count), centred, variance});
  });
}

void batch_norm_forward(const Tensor& x, const Tensor& mean, const Tensor& variance, double epsilon,
                        const Tensor& gamma, const Tensor& beta, const Tensor& y) {
  const Channels channels{mean, variance, gamma, static_cast<float>(epsilon)};
  dispatch("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), BatchNormForward<T>{{}, in<T>(x), size(x.dim(-1)), channels, beta, out<T>(y)});
  });
}

void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& lengths,
                         const Tensor& mean, const Tensor& variance, double epsilon, bool constant,
                         const Tensor& gamma, const Destination& dx, const Destination& dgamma,
                         const Destination& dbeta) {
  const int64_t C = x.dim(-1);
  const Channels channels{mean, variance, gamma, static_cast<float>(epsilon)};
  const RealRows real(x, lengths);
  const bool through = dx && !constant;
  const Tensor sum_dyx = per_channel(C), sum_dy = per_channel(C), count = per_channel(C);
  dispatch("batch_norm", x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (through || dgamma || dbeta) {
      const Sums<3> sums({1, x.dim(0) * x.dim(1), C},
                         GradientSums<T>{in<T>(dy), in<T>(x), size(C), real, channels});
      sums.join(0, dgamma);
      sums.join(1, dbeta);
      sums.join(0, {sum_dyx});
      sums.join(1, {sum_dy});
      sums.join(2, {count});
    }
    if (dx)
      each(x.numel(), BatchNormBackward<T>{{},
                                           in<T>(dy),
                                           in<T>(x),
                                           size(C),
                                           real,
                                           channels,
                                           in<float>(sum_dyx),
                                           in<float>(sum_dy),
                                           through ? in<float>(count) : nullptr,
                                           dx});
  });
}

}  // namespace tapeformer::kernels::cuda
