// Reductions: sum, maximum, sum of squares.
#include <algorithm>
#include <vector>

#include "core/cpu/sums.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

void sum_forward(const Tensor& x, int dim, double scale, const Destination& y) {
  const Around around(x.shape(), dim);
  dispatch_floating("sum", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto value = [px = x.data<T>()](int64_t i, int64_t) { return Wide<T>(px[i]); };
    if (y.tensor.dtype() == x.dtype())
      sum_around<T>(around.outer, around.n, around.inner, scale, y, value);
    else
      sum_around<Wide<T>>(around.outer, around.n, around.inner, scale, y, value);
  });
}

void sum_backward(const Tensor& dy, int dim, double scale, const Destination& dx) {
  const Around around(dx.tensor.shape(), dim);
  dispatch_floating("sum", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = around.n, inner = around.inner;
    const T* pdy = dy.data<T>();
    T* out = dx.tensor.data<T>();
    const auto factor = static_cast<Wide<T>>(scale);
    if (around.outer == 1 && inner == 1) {  // of all elements
      if (n == 0) return;
      const T value = factor * pdy[0];
      return assign_each<T>(dx, 1, [=](int64_t) { return value; });
    }
    // Row r = (o, i) of dx is row o of dy; where inner is 1, one o at a time fills n elements.
    const int64_t length = inner == 1 ? n : inner,
                  rows = inner == 1 ? around.outer : around.outer * n;
    const int64_t grain = std::max<int64_t>(1, piece / std::max<int64_t>(length, 1));
    parallel_pieces(rows, grain, length, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* source = inner == 1 ? pdy + r : pdy + r / n * inner;
        if (inner == 1)
          assign_range(0, n, out + r * n, dx.accumulate,
                       [value = factor * *source](int64_t) { return value; });
        else
          assign_range(0, inner, out + r * inner, dx.accumulate,
                       [=](int64_t j) { return factor * source[j]; });
      }
    });
  });
}

namespace {

// Whether `candidate` displaces `best`: NaN wins over all numbers, the first of equals stays.
template <class T>
bool displaces(T candidate, T best) {
  return candidate > best || (candidate != candidate && best == best);
}

template <class T>
struct Best {
  T value;
  int64_t index;
};

// The largest of x[begin], x[begin + 1] ... x[end - 1]; begin < end.
template <class T>
Best<T> largest(const T* x, int64_t begin, int64_t end) {
  Best<T> best{x[begin], begin};
  for (int64_t i = begin + 1; i < end; ++i)
    if (displaces(x[i], best.value)) best = {x[i], i};
  return best;
}

// The same over a long row on all cores: the best of each fixed piece, then the best of those.
template <class T>
Best<T> largest_of_row(const T* x, int64_t n) {
  const int64_t pieces = (n + piece - 1) / piece;
  std::vector<Best<T>> bests(pieces);
  parallel_pieces(n, piece, 1, [&](int64_t begin, int64_t end) {
    bests[begin / piece] = largest(x, begin, end);
  });
  Best<T> best = bests[0];
  for (const Best<T>& other : bests)
    if (displaces(other.value, best.value)) best = other;
  return best;
}

}  // namespace

void max_forward(const Tensor& x, int dim, const Tensor& y, const Tensor& index) {
  const Around around(x.shape(), dim);
  dispatch_wide("max", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = around.n, inner = around.inner;
    const T* px = x.data<T>();
    T* py = y.data<T>();
    int32_t* places = index.data<int32_t>();
    const auto settle = [&](int64_t o, const Best<T>& best) {
      py[o] = best.value;
      places[o] = static_cast<int32_t>(best.index);
    };
    if (around.outer == 1 && inner == 1) return settle(0, largest_of_row(px, n));
    const int64_t grain = std::max<int64_t>(1, piece / std::max<int64_t>(1, n * inner));
    parallel_pieces(around.outer, grain, n * inner, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        if (inner == 1) {
          settle(o, largest(px + o * n, 0, n));
          continue;
        }
        T* best = py + o * inner;
        int32_t* place = places + o * inner;
        std::copy(px + o * n * inner, px + (o * n + 1) * inner, best);
        std::fill(place, place + inner, 0);
        for (int64_t i = 1; i < n; ++i) {
          const T* row = px + (o * n + i) * inner;
#pragma omp simd
          for (int64_t j = 0; j < inner; ++j) {
            const bool better = displaces(row[j], best[j]);
            best[j] = better ? row[j] : best[j];
            place[j] = better ? static_cast<int32_t>(i) : place[j];
          }
        }
      }
    });
  });
}

void max_backward(const Tensor& dy, const Tensor& index, int dim, const Destination& dx) {
  const Around around(dx.tensor.shape(), dim);
  if (!dx.accumulate) fill(dx.tensor, 0);
  dispatch_wide("max", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* pdy = dy.data<T>();
    const int32_t* places = index.data<int32_t>();
    T* out = dx.tensor.data<T>();
    for (int64_t k = 0; k < dy.numel(); ++k) {  // k = (o, j)
      const int64_t o = k / around.inner, j = k % around.inner;
      out[(o * around.n + places[k]) * around.inner + j] += pdy[k];
    }
  });
}

void sum_of_squares(const Tensor& x, const Tensor& y) {
  dispatch_floating("sum_of_squares", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* px = x.data<T>();
    const int64_t pieces = (x.numel() + piece - 1) / piece;
    const Tensor partials = Tensor::empty({pieces}, DType::f64);
    double* partial = partials.data<double>();
    parallel_pieces(x.numel(), piece, 1, [&](int64_t begin, int64_t end) {
      const T* data = px;  // see assign_range
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(data[i]) * data[i];
      partial[begin / piece] = sum;
    });
    double sum = 0;
    for (int64_t i = 0; i < pieces; ++i) sum += partial[i];
    y.data<Wide<T>>()[0] = static_cast<Wide<T>>(sum);
  });
}

}  // namespace tapeformer::kernels::cpu
