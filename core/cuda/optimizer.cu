// Optimizer steps over flat buffers: each reads and writes every number once. The clip factor is
// read where another kernel has left it, so the host waits for nothing.
#include "core/cuda/device.cuh"

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
struct AdamW : Each {
  float* p;
  In gradient, factor;
  float *m, *v;
  float beta1, beta2, rest1, rest2, epsilon, keep, rate, root_scale;
  Out rounded;
  __device__ void operator()(size_t i) const {
    const float scale = factor.read(0);
    if (std::isnan(scale)) return;
    const float g = scale * gradient.read(i);
    const float m_new = beta1 * m[i] + rest1 * g, v_new = beta2 * v[i] + rest2 * (g * g);
    m[i] = m_new;
    v[i] = v_new;
    const float p_new = keep * p[i] - rate * m_new / (sqrtf(v_new) * root_scale + epsilon);
    p[i] = p_new;
    if (rounded.data) rounded.write(i, p_new);
  }
};

struct Sgd : Each {
  float* p;
  In gradient, factor;
  float* velocity;
  float rate, momentum, decay;
  Out rounded;
  __device__ void operator()(size_t i) const {
    const float scale = factor.read(0);
    if (std::isnan(scale)) return;
    float g = scale * gradient.read(i) + decay * p[i];
    if (velocity) velocity[i] = g = momentum * velocity[i] + g;
    const float p_new = p[i] - rate * g;
    p[i] = p_new;
    if (rounded.data) rounded.write(i, p_new);
  }
};

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
  each(p.numel(), AdamW{{},
                        out<float>(p),
                        gradient,
                        factor,
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
                        rounded});
}

void sgd_step(const Tensor& p, const Tensor& gradient, const Tensor& factor, const Tensor& velocity,
              double lr, double momentum, double weight_decay, const Tensor& rounded) {
  check_master("sgd", p);
  each(p.numel(), Sgd{{},
                      out<float>(p),
                      gradient,
                      factor,
                      out<float>(velocity),
                      static_cast<float>(lr),
                      static_cast<float>(momentum),
                      static_cast<float>(weight_decay),
                      rounded});
}

}  // namespace tapeformer::kernels::cuda
