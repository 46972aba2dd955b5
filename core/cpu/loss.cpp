// Softmax, cross-entropy and its gradient in one visit of each row of logits.
#include <cmath>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/cpu/simd.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {

using namespace tapeformer::cpu;

void count_targets(const Tensor& targets, int32_t ignore_index, const Tensor& count) {
  const int32_t* target = targets.data<int32_t>();
  int64_t counted = 0;
  for (int64_t n = 0; n < targets.numel(); ++n) counted += target[n] != ignore_index;
  count.fill(static_cast<double>(std::max<int64_t>(counted, 1)));
}

namespace {

template <class T>
struct CrossEntropy {
  int64_t classes;
  T smoothing, count;
};

// With l = x - max x, Z = sum_v exp(l_v) and q = (1 - s) onehot(target) + s / V:
//   loss = -sum_v q_v (l_v - log Z) = log Z - (1 - s) l_target - s mean(l);
//   dloss / dx_v = exp(l_v) / Z - q_v
// (from the softmax's Jacobian; Bishop 2006, eq. 4.109). dx may be null, or x itself.
template <class T>
T cross_entropy_row(const CrossEntropy<T>& a, const T* x, int32_t target, T* dx) {
  const int64_t V = a.classes;
  const T largest = row_max<T>(V, [=](int64_t v) { return x[v]; });
  const T l_target = x[target] - largest;
  const T mean_l =
      a.smoothing == 0 ? T(0) : row_sum<T>(V, [=](int64_t v) { return x[v] - largest; }) / V;
  T Z;
  if (dx) {
    Z = row_sum<T>(V, [=](int64_t v) { return dx[v] = simd::exp(x[v] - largest); });
    const T scale = 1 / (Z * a.count), uniform = a.smoothing / (V * a.count);
    row_write(V, dx, false, [=](int64_t v) { return dx[v] * scale - uniform; });
    dx[target] -= (1 - a.smoothing) / a.count;
  } else {
    Z = row_sum<T>(V, [=](int64_t v) { return simd::exp(x[v] - largest); });
  }
  return std::log(Z) - (1 - a.smoothing) * l_target - a.smoothing * mean_l;
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& count,
                   int32_t ignore_index, double smoothing, const Tensor& losses,
                   const Tensor& dlogits) {
  dispatch_floating("cross_entropy", logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t V = logits.dim(-1), N = targets.numel();
    const CrossEntropy<T> a{V, T(smoothing), T(count.item())};
    const int32_t* target = targets.data<int32_t>();
    const T* x = logits.data<T>();
    T *dx = optional_data<T>(dlogits), *loss = losses.data<T>();
    const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(V, 1));
    parallel_pieces(N, grain, 4 * V, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* dx_row = dx ? dx + n * V : nullptr;
        if (target[n] != ignore_index) {
          loss[n] = cross_entropy_row(a, x + n * V, target[n], dx_row);
        } else {
          loss[n] = 0;
          if (dx) std::fill_n(dx_row, V, T(0));
        }
      }
    });
  });
}

}  // namespace tapeformer::kernels::cpu
