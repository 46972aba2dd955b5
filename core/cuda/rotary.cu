// Rotary positions: every pair of channels of a head turns by an angle that grows with position.
#include "core/cuda/device.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// table [T, D/2, 2]: cos and sin of (start + t) base^(-2i/D), from double, because the angle is
// large.
struct Angles : Each {
  size_t half;
  double start, base;
  float* table;
  __device__ void operator()(size_t i) const {
    const double frequency = pow(base, -static_cast<double>(i % half) / static_cast<double>(half));
    const double angle = (start + static_cast<double>(i / half)) * frequency;
    table[2 * i] = static_cast<float>(cos(angle));
    table[2 * i + 1] = static_cast<float>(sin(angle));
  }
};

// y_i = x_i cos - x_j sin, y_j = x_j cos + x_i sin, with j = i + D/2; a rotation's gradient turns
// back. One element of y at a time.
template <class T>
struct Rotary : Each {
  const T* x;
  size_t width, times, turned, head_size;
  const float* table;
  float direction;
  Out y;
  __device__ void operator()(size_t i) const {
    const size_t column = i % width, t = i / width % times, half = head_size / 2;
    const float value = to_float(x[i]);
    if (column >= turned) return y.write(i, value);
    const size_t place = column % head_size;
    const bool first = place < half;
    const float other = to_float(x[first ? i + half : i - half]);
    const float* angle = table + 2 * (t * half + place % half);
    y.write(i, value * angle[0] + (first ? -direction : direction) * other * angle[1]);
  }
};

}  // namespace

void rotary(const Tensor& x, int64_t heads, int64_t head_size, int64_t start, double base,
            bool inverse, const Destination& y) {
  const int64_t W = x.dim(-1), times = x.dim(-2), half = head_size / 2;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const Tensor table = Tensor::empty({times, half, 2}, DType::f32, Device::cuda);
  each(times * half, Angles{{}, size(half), static_cast<double>(start), base, out<float>(table)});
  dispatch("rotary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), Rotary<T>{{},
                              in<T>(x),
                              size(W),
                              size(times),
                              size(heads * head_size),
                              size(head_size),
                              in<float>(table),
                              inverse ? -1.0f : 1.0f,
                              y});
  });
}

}  // namespace tapeformer::kernels::cuda
