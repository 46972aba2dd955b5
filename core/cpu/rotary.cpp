// Rotary positions: every pair of channels of a head turns by an angle that grows with its
// position.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

// cos and sin of the angles (start + t) base^(-2i/D), [T, D/2] each. The layers of a model ask for
// the same table one after the other, so each thread keeps its last one.
template <class T>
class AngleTable {
 public:
  static const AngleTable& of(int64_t start, int64_t times, int64_t half, double base) {
    thread_local AngleTable table;
    if (table.start_ != start || table.times_ != times || table.half_ != half ||
        table.base_ != base)
      table.compute(start, times, half, base);
    return table;
  }
  const T* cosine(int64_t t) const { return values_.data() + 2 * t * half_; }
  const T* sine(int64_t t) const { return cosine(t) + half_; }

 private:
  void compute(int64_t start, int64_t times, int64_t half, double base) {
    start_ = start, times_ = times, half_ = half, base_ = base;
    values_.resize(2 * times * half);
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(base, -static_cast<double>(i) / half);
      for (int64_t t = 0; t < times; ++t) {
        const double angle = static_cast<double>(start + t) * frequency;
        values_[2 * t * half + i] = static_cast<T>(std::cos(angle));
        values_[2 * t * half + half + i] = static_cast<T>(std::sin(angle));
      }
    }
  }
  int64_t start_ = 0, times_ = -1, half_ = 0;
  double base_ = 0;
  std::vector<T> values_;
};

}  // namespace

// y_i = x_i cos - x_j sin, y_j = x_j cos + x_i sin, with j = i + D/2. A rotation's gradient turns
// back, so backward is the same kernel with `inverse`.
void rotary(const Tensor& x, int64_t heads, int64_t head_size, int64_t start, double base,
            bool inverse, const Destination& y) {
  dispatch_floating("rotary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t W = x.dim(-1), times = x.dim(-2), rows = W ? x.numel() / W : 0;
    const int64_t half = head_size / 2, turned = heads * head_size;
    const auto& table = AngleTable<Wide<T>>::of(start, times, half, base);
    const T* in = x.data<T>();
    const Wide<T> direction = inverse ? -1 : 1;
    T* out = y.tensor.data<T>();
    const bool accumulate = y.accumulate;
    const auto turn_row = [&](int64_t n) {
      const auto *cosine = table.cosine(n % times), *sine = table.sine(n % times);
      const T* from = in + n * W;
      T* to = out + n * W;
      for (int64_t h = 0; h < heads; ++h) {
        const T *a = from + h * head_size, *b = a + half;
        T* y_a = to + h * head_size;
        row_write(half, y_a, accumulate,
                  [=](int64_t i) { return a[i] * cosine[i] - direction * b[i] * sine[i]; });
        row_write(half, y_a + half, accumulate,
                  [=](int64_t i) { return b[i] * cosine[i] + direction * a[i] * sine[i]; });
      }
      row_write(W - turned, to + turned, accumulate, [=](int64_t i) { return from[turned + i]; });
    };
    parallel_pieces(rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(W, 1)), W,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t n = begin; n < end; ++n) turn_row(n);
                    });
  });
}

}  // namespace tapeformer::kernels::cpu
