// Optimizer steps over flat buffers: each reads and writes every number once, so they run at the
// speed of memory. What is rounded to 16 bits is so while a piece lies in the cache.
#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {

using namespace tapeformer::cpu;

namespace {
constexpr int64_t grain = 8192;

// Elements [begin, end) of `rounded`, where there is one.
template <class T>
void round_piece(const T* p, const Tensor& rounded, int64_t begin, int64_t end) {
  if (!rounded.defined()) return;
  dispatch_floating("round", rounded.dtype(), [&](auto zero) {
    using To = decltype(zero);
    To* to = rounded.data<To>();
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = p[i];
  });
}
}  // namespace

void clip_factor(const Tensor& sum_of_squares, const Tensor& losses, double max_norm, double scale,
                 const Tensor& norm, const Tensor& factor) {
  const double total = std::sqrt(sum_of_squares.item()) / scale;
  norm.fill(total);
  bool finite = std::isfinite(norm.item()) && !std::isnan(factor.item());
  for (int64_t i = 0; losses.defined() && i < losses.numel(); ++i)
    finite &= std::isfinite(losses.rows(i, i + 1).item());
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (total + 1e-6)) : 1.0;
  factor.fill(finite ? clip / scale : NAN);
}

// Written with one division and one square root: m / c1 / (sqrt(v / c2) + epsilon) is
// (m / c1) / (sqrt(v) / sqrt(c2) + epsilon).
void adamw_step(const Tensor& p, const Tensor& gradient, const Tensor& factor, const Tensor& m,
                const Tensor& v, const AdamWStep& step, const Tensor& rounded) {
  dispatch_wide("adamw", p.dtype(), [&](auto type) {
    using T = decltype(type);
    T *p_data = p.data<T>(), *m_data = m.data<T>(), *v_data = v.data<T>();
    const T* g_data = gradient.data<T>();
    const T scale = T(factor.item());
    if (std::isnan(scale)) return;
    const T beta1 = T(step.beta1), beta2 = T(step.beta2), epsilon = T(step.epsilon);
    const T rest1 = T(1 - step.beta1), rest2 = T(1 - step.beta2);
    const T keep = T(1 - step.lr * step.weight_decay), rate = T(step.lr / step.correction1);
    const T root_scale = T(1 / std::sqrt(step.correction2));
    parallel_pieces(p.numel(), grain, 1, [=, &rounded](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const T g = scale * g_data[i];
        const T m_new = beta1 * m_data[i] + rest1 * g;
        const T v_new = beta2 * v_data[i] + rest2 * (g * g);
        m_data[i] = m_new;
        v_data[i] = v_new;
        p_data[i] = keep * p_data[i] - rate * m_new / (std::sqrt(v_new) * root_scale + epsilon);
      }
      round_piece(p_data, rounded, begin, end);
    });
  });
}

void sgd_step(const Tensor& p, const Tensor& gradient, const Tensor& factor, const Tensor& velocity,
              double lr, double momentum, double weight_decay, const Tensor& rounded) {
  dispatch_wide("sgd", p.dtype(), [&](auto type) {
    using T = decltype(type);
    T *p_data = p.data<T>(), *velocity_data = optional_data<T>(velocity);
    const T* g_data = gradient.data<T>();
    const T scale = T(factor.item()), rate = T(lr), keep = T(momentum), decay = T(weight_decay);
    if (std::isnan(scale)) return;
    parallel_pieces(p.numel(), grain, 1, [=, &rounded](int64_t begin, int64_t end) {
      if (velocity_data) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const T g = scale * g_data[i] + decay * p_data[i];
          const T velocity_new = keep * velocity_data[i] + g;
          velocity_data[i] = velocity_new;
          p_data[i] -= rate * velocity_new;
        }
      } else {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i)
          p_data[i] -= rate * (scale * g_data[i] + decay * p_data[i]);
      }
      round_piece(p_data, rounded, begin, end);
    });
  });
}

}  // namespace tapeformer::kernels::cpu
