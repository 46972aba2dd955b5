// Rotary positions: every pair of channels of a head turns by an angle that grows with position.
#include "core/cuda/pack.cuh"

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
// back. A row's columns are here its `pairs` pairs, head by head, and then what is not turned.
template <class T>
struct Rotary : EachInRows {
  const T* x;
  size_t width, times, pairs, half;
  const float* table;
  float direction;
  Out y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    if (column >= pairs) {
      float values[n];
      read(x + row * width + pairs + column, values);
      return write(y, row * width + pairs + column, values);
    }
    const size_t place = static_cast<unsigned>(column) % static_cast<unsigned>(half);
    const size_t i = row * width + 2 * column - place, j = i + half;
    float first[n], second[n], angles[2 * n];
    read(x + i, first);
    read(x + j, second);
    read(table + 2 * (row % times * half + place), angles);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float a = first[k], b = second[k];
      const float cosine = angles[2 * k], sine = direction * angles[2 * k + 1];
      first[k] = a * cosine - b * sine;
      second[k] = b * cosine + a * sine;
    }
    write(y, i, first);
    write(y, j, second);
  }
};

}  // namespace

void rotary(const Tensor& x, int64_t heads, int64_t head_size, int64_t start, double base,
            bool inverse, const Destination& y) {
  const int64_t W = x.dim(-1), times = x.dim(-2), half = head_size / 2, pairs = heads * half;
  const Tensor table = Tensor::empty({times, half, 2}, DType::f32, Device::cuda);
  each(times * half, Angles{{}, size(half), static_cast<double>(start), base, out<float>(table)});
  dispatch("rotary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(rows_of(x), W - pairs,
                    packed(n, {half, W - 2 * pairs}, {x.raw(), y.tensor.raw()}),
                    Rotary<T>{{},
                              in<T>(x),
                              size(W),
                              size(times),
                              size(pairs),
                              size(half),
                              in<float>(table),
                              inverse ? -1.0f : 1.0f,
                              y});
  });
}

}  // namespace tapeformer::kernels::cuda
