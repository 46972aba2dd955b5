// Optimizer steps over flat buffers: each reads and writes every number once. The clip factor is
// read where another kernel has left it, so the host waits for nothing.
#include "core/cuda/pack.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

struct ClipFactor : Each {
  In sum_of_squares, losses;
  int64_t loss_count;
  float max_norm, scale;
  Out norm;
  float* factor;
  __device__ void operator()(size_t) const {
    const float total = sqrtf(sum_of_squares.read(0)) / scale;
    norm.write(0, total);
    bool finite = std::isfinite(total) && !std::isnan(*factor);
    for (int64_t i = 0; i < loss_count; ++i) finite = finite && std::isfinite(losses.read(i));
    const float clip = max_norm > 0 ? fminf(1, max_norm / (total + 1e-6f)) : 1;
    *factor = finite ? clip / scale : NAN;
  }
};

// m / c1 / (sqrt(v / c2) + epsilon) is (m / c1) / (sqrt(v) / sqrt(c2) + epsilon).
struct AdamW : EachPack {
  float* p;
  const float *gradient, *factor;
  float *m, *v;
  float beta1, beta2, rest1, rest2, epsilon, keep, rate, root_scale;
  Out rounded;
  template <int n>
  __device__ void run(size_t i) const {
    const float scale = *factor;
    if (std::isnan(scale)) return;
    float g[n], p_new[n], m_new[n], v_new[n];
    read(gradient + i, g);
    read(p + i, p_new);
    read(m + i, m_new);
    read(v + i, v_new);
    for (int k = 0; k < n; ++k) {
      g[k] *= scale;
      m_new[k] = beta1 * m_new[k] + rest1 * g[k];
      v_new[k] = beta2 * v_new[k] + rest2 * (g[k] * g[k]);
      p_new[k] = keep * p_new[k] - rate * m_new[k] / (sqrtf(v_new[k]) * root_scale + epsilon);
    }
    write(p + i, p_new);
    write(m + i, m_new);
    write(v + i, v_new);
    if (rounded.data) write(rounded, i, p_new);
  }
};

struct Sgd : EachPack {
  float* p;
  const float *gradient, *factor;
  float* velocity;
  float rate, momentum, decay;
  Out rounded;
  template <int n>
  __device__ void run(size_t i) const {
    const float scale = *factor;
    if (std::isnan(scale)) return;
    float g[n], p_new[n], moved[n];
    read(gradient + i, g);
    read(p + i, p_new);
    if (velocity) read(velocity + i, moved);
    for (int k = 0; k < n; ++k) {
      g[k] = scale * g[k] + decay * p_new[k];
      if (velocity) g[k] = momentum * moved[k] + g[k];
      p_new[k] -= rate * g[k];
    }
    if (velocity) write(velocity + i, g);
    write(p + i, p_new);
    if (rounded.data) write(rounded, i, p_new);
  }
};

const void* raw_of(const Tensor& x) { return x.defined() ? x.raw() : nullptr; }

void check_master(const char* operation, const Tensor& p) {
  check(p.dtype() == DType::f32, operation, ": on a GPU the weights that are updated are f32, got ",
        p.dtype());
}

}  // namespace

void clip_factor(const Tensor& sum_of_squares, const Tensor& losses, double max_norm, double scale,
                 const Tensor& norm, const Tensor& factor) {
  each(1, ClipFactor{{},
                     sum_of_squares,
                     losses,
                     losses.defined() ? losses.numel() : 0,
                     static_cast<float>(max_norm),
                     static_cast<float>(scale),
                     norm,
                     out<float>(factor)});
}

void adamw_step(const Tensor& p, const Tensor& gradient, const Tensor& factor, const Tensor& m,
                const Tensor& v, const AdamWStep& step, const Tensor& rounded) {
  check_master("adamw", p);
  const auto f = [](double x) { return static_cast<float>(x); };
  each_pack<pack_of<float>>(p.numel(),
                            AdamW{{},
                                  out<float>(p),
                                  in<float>(gradient),
                                  in<float>(factor),
                                  out<float>(m),
                                  out<float>(v),
                                  f(step.beta1),
                                  f(step.beta2),
                                  f(1 - step.beta1),
                                  f(1 - step.beta2),
                                  f(step.epsilon),
                                  f(1 - step.lr * step.weight_decay),
                                  f(step.lr / step.correction1),
                                  f(1 / std::sqrt(step.correction2)),
                                  rounded},
                            {p.raw(), gradient.raw(), m.raw(), v.raw(), raw_of(rounded)});
}

void sgd_step(const Tensor& p, const Tensor& gradient, const Tensor& factor, const Tensor& velocity,
              double lr, double momentum, double weight_decay, const Tensor& rounded) {
  check_master("sgd", p);
  each_pack<pack_of<float>>(p.numel(),
                            Sgd{{},
                                out<float>(p),
                                in<float>(gradient),
                                in<float>(factor),
                                out<float>(velocity),
                                static_cast<float>(lr),
                                static_cast<float>(momentum),
                                static_cast<float>(weight_decay),
                                rounded},
                            {p.raw(), gradient.raw(), raw_of(velocity), raw_of(rounded)});
}

}  // namespace tapeformer::kernels::cuda
