// Softmax, cross-entropy and its gradient in one visit of each row of logits.
#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/cpu/scratch.h"
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
// (from the softmax's Jacobian; Bishop 2006, eq. 4.109). dx may be null, or x itself. `powers`
// holds exp(l): dx, or other memory where dx has fewer digits.
template <class T, class D>
T cross_entropy_row(const CrossEntropy<T>& a, const T* x, int32_t target, T* powers, D* dx) {
  const int64_t V = a.classes;
  const T largest = row_max<T>(V, [=](int64_t v) { return x[v]; });
  const T l_target = x[target] - largest;
  const T mean_l =
      a.smoothing == 0 ? T(0) : row_sum<T>(V, [=](int64_t v) { return x[v] - largest; }) / V;
  T Z;
  if (dx) {
    Z = row_sum<T>(V, [=](int64_t v) { return powers[v] = simd::exp(x[v] - largest); });
    const T scale = 1 / (Z * a.count), uniform = a.smoothing / (V * a.count);
    const T at_target = powers[target] * scale - uniform - (1 - a.smoothing) / a.count;
    row_write(V, dx, false, [=](int64_t v) { return powers[v] * scale - uniform; });
    dx[target] = at_target;
  } else {
    Z = row_sum<T>(V, [=](int64_t v) { return simd::exp(x[v] - largest); });
  }
  return std::log(Z) - (1 - a.smoothing) * l_target - a.smoothing * mean_l;
}

template <class T, class D>
void cross_entropy_rows(const CrossEntropy<T>& a, const T* x, const Tensor& targets,
                        int32_t ignore_index, T* loss, D* dx) {
  const int64_t V = a.classes, grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(V, 1));
  const int32_t* target = targets.data<int32_t>();
  parallel_pieces(targets.numel(), grain, 4 * V, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      D* dx_row = dx ? dx + n * V : nullptr;
      if (target[n] == ignore_index) {
        loss[n] = 0;
        if (dx) std::fill_n(dx_row, V, D(0));
        continue;
      }
      T* powers;
      if constexpr (std::is_same_v<T, D>)
        powers = dx_row;
      else
        powers = thread_scratch<T>(V);
      loss[n] = cross_entropy_row(a, x + n * V, target[n], powers, dx_row);
    }
  });
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& count,
                   int32_t ignore_index, double smoothing, const Tensor& losses,
                   const Tensor& dlogits) {
  dispatch_wide("cross_entropy", logits.dtype(), [&](auto wide) {
    using T = decltype(wide);
    const CrossEntropy<T> a{logits.dim(-1), T(smoothing), T(count.item())};
    const auto rows = [&](auto* dx) {
      cross_entropy_rows(a, logits.data<T>(), targets, ignore_index, losses.data<T>(), dx);
    };
    if (!dlogits.defined()) return rows(static_cast<T*>(nullptr));
    dispatch_floating("cross_entropy", dlogits.dtype(), [&](auto type) {
      using D = decltype(type);
      if constexpr (std::is_same_v<T, Wide<D>>) rows(dlogits.data<D>());
    });
  });
}

}  // namespace tapeformer::kernels::cpu
