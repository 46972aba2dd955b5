// The seam: every kernel, declared once, with its formula. A kernel computes; it allocates no
// result, records nothing and trusts its caller to have checked shapes and dtypes. It runs where
// its first tensor lies: kernels::cpu and kernels::cuda hold functions of the same name.
//
// Conventions. Inputs come first, results after them. A Tensor result is overwritten; a
// Destination is overwritten or added to. "Optional" tensors may be undefined. Shape letters:
// B batch, T time, S time of keys, C channels, H heads, D head size, V vocabulary, N rows.
// Every sum runs in an order that depends on the shapes alone, never on the number of threads.
// Where tensors are of a 16-bit dtype, arithmetic is f32, and so are statistics (mean, rstd, lse),
// losses, and gradients that are summed over rows: of gains, shifts, biases and tables. A kernel
// that says "wide" takes f32 and f64 only.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace tapeformer {

/// Where a kernel puts a gradient: a tensor, and whether to overwrite it or to add to it.
/// Empty when nobody needs that gradient.
struct Destination {
  Tensor tensor;
  bool accumulate = false;
  explicit operator bool() const { return tensor.defined(); }
};

/// Heads inside a larger tensor (packed q/k/v, a key-value cache larger than its content): head h
/// of row (b, t) starts at element offset + b * batch_stride + t * row_stride + h * D.
struct Heads {
  Tensor tensor;
  int64_t offset = 0, batch_stride = 0, row_stride = 0;
  bool accumulate = false;  // for gradients, as in Destination
  explicit operator bool() const { return tensor.defined(); }
};

inline Device device_of(const Tensor& tensor) { return tensor.device(); }
inline Device device_of(const Heads& heads) { return heads.tensor.device(); }

// A program without the CUDA backend lacks every kernels::cuda function, and never calls one: it
// has no tensor on that device. One with it (TAPEFORMER_CUDA) does not link unless all are there.
#define TAPEFORMER_KERNEL(name, ...)                                           \
  namespace cpu {                                                              \
  void name(__VA_ARGS__);                                                      \
  }                                                                            \
  namespace cuda {                                                             \
  TAPEFORMER_CUDA_PART void name(__VA_ARGS__);                                 \
  }                                                                            \
  template <class First, class... Rest>                                        \
  inline void name(const First& first, const Rest&... rest) {                  \
    if constexpr (knows_cuda)                                                  \
      if (device_of(first) == Device::cuda) return cuda::name(first, rest...); \
    cpu::name(first, rest...);                                                 \
  }

namespace kernels {

// ---------------------------------------------------------------- element-wise

/// x = value.
TAPEFORMER_KERNEL(fill, const Tensor& x, double value)
/// y = x, converted to y's dtype. Same number of elements.
TAPEFORMER_KERNEL(copy, const Tensor& x, const Tensor& y)
/// y (+)= scale * x + shift, converted to y's dtype.
TAPEFORMER_KERNEL(affine, const Tensor& x, double scale, double shift, const Destination& y)

enum class Unary { exp, log, sqrt, tanh, sigmoid, relu, gelu, gelu_tanh, silu };
/// Whether f's derivative is written in terms of y = f(x), and not of x.
inline bool derivative_reads_output(Unary f) {
  return f == Unary::exp || f == Unary::sqrt || f == Unary::tanh || f == Unary::sigmoid;
}
/// y = f(x). gelu is x Phi(x) with the normal distribution function Phi(x) = (1 + erf(x/sqrt 2))/2,
/// gelu_tanh its approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel
/// 2016); silu is x sigmoid(x).
TAPEFORMER_KERNEL(unary_forward, const Tensor& x, const Tensor& y, Unary f)
/// dx (+)= dy f'(x). Only one of x and y is read, see derivative_reads_output; the other is
/// optional.
TAPEFORMER_KERNEL(unary_backward, const Tensor& dy, const Tensor& x, const Tensor& y, Unary f,
                  const Destination& dx)
/// Wide: y = x^exponent.
TAPEFORMER_KERNEL(power_forward, const Tensor& x, double exponent, const Tensor& y)
/// dx (+)= dy exponent x^(exponent - 1).
TAPEFORMER_KERNEL(power_backward, const Tensor& dy, const Tensor& x, double exponent,
                  const Destination& dx)

enum class Binary { add, sub, mul, div, pow };
/// y = a (op) b under NumPy's broadcasting; y has the broadcast shape.
TAPEFORMER_KERNEL(binary_forward, const Tensor& a, const Tensor& b, Binary op, const Tensor& y)
/// The gradient of a (`first`) or of b (otherwise): dy times the partial derivative, summed over
/// the dimensions along which that input was broadcast. d has that input's shape; where there is
/// such a sum, d is wide. Add and sub read neither a nor b, mul only the other one; what is not
/// read is optional.
TAPEFORMER_KERNEL(binary_backward, const Tensor& dy, const Tensor& a, const Tensor& b, Binary op,
                  bool first, const Destination& d)
/// y = condition ? a : b; condition is i32, and all three broadcast to y's shape.
TAPEFORMER_KERNEL(where_forward, const Tensor& condition, const Tensor& a, const Tensor& b,
                  const Tensor& y)
/// The gradient of a (`first`) or b: dy where the condition chose it, 0 elsewhere, summed over
/// broadcast dimensions; d as above.
TAPEFORMER_KERNEL(where_backward, const Tensor& dy, const Tensor& condition, bool first,
                  const Destination& d)

/// y (+)= x m / (1 - p), m from Bernoulli(1 - p): element i is kept when
///   uniform(word i of key) >= p.
/// Its own backward: the same key gives the same mask.
TAPEFORMER_KERNEL(dropout, const Tensor& x, double p, RandomKey key, const Destination& y)
/// x ~ N(mean, deviation^2), or uniform on [low, high).
TAPEFORMER_KERNEL(fill_normal, const Tensor& x, double mean, double deviation, RandomKey key)
TAPEFORMER_KERNEL(fill_uniform, const Tensor& x, double low, double high, RandomKey key)

// ---------------------------------------------------------------- reductions and shapes

/// y = scale * sum of x over dimension `dim`, which y lacks or has with size 1. y may be wide.
TAPEFORMER_KERNEL(sum_forward, const Tensor& x, int dim, double scale, const Destination& y)
/// dx (+)= scale * dy, repeated along `dim`. dx has the shape of x.
TAPEFORMER_KERNEL(sum_backward, const Tensor& dy, int dim, double scale, const Destination& dx)
/// Wide: y = max over `dim`; index (i32, y's shape) is the first place that attains it. NaN wins.
TAPEFORMER_KERNEL(max_forward, const Tensor& x, int dim, const Tensor& y, const Tensor& index)
/// Wide: dx (+)= dy at index, 0 elsewhere.
TAPEFORMER_KERNEL(max_backward, const Tensor& dy, const Tensor& index, int dim,
                  const Destination& dx)
/// y [1] = sum of x^2, accumulated in f64 over fixed chunks. y is wide.
TAPEFORMER_KERNEL(sum_of_squares, const Tensor& x, const Tensor& y)

/// y (+)= x with dimensions rearranged: dimension i of y is dimension order[i] of x.
TAPEFORMER_KERNEL(permute, const Tensor& x, const std::vector<int>& order, const Destination& y)
/// y (+)= elements [start, start + y.dim(dim)) of x along `dim`.
TAPEFORMER_KERNEL(slice_read, const Tensor& x, int dim, int64_t start, const Destination& y)
/// Elements [start, start + x.dim(dim)) of y along `dim` (+)= x. The rest of y stays as it is.
TAPEFORMER_KERNEL(slice_write, const Tensor& x, int dim, int64_t start, const Destination& y)
/// The gradient of slice_read: dx (+)= dy in [start, start + dy.dim(dim)) along `dim`, 0 elsewhere.
TAPEFORMER_KERNEL(slice_backward, const Tensor& dy, int dim, int64_t start, const Destination& dx)

// ---------------------------------------------------------------- matrix products

/// c [.., m, n] (+)= alpha * op(a) op(b), where op transposes the last two dimensions on request.
/// Leading dimensions of a, b and c are equal; b (or a) may be two-dimensional and serves them all.
/// c has the dtype of a and b, or is f32 where they are of a 16-bit one.
TAPEFORMER_KERNEL(matmul, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                  double alpha, const Destination& c)

enum class Activation { none, relu, gelu, gelu_tanh, silu };
/// z [N, O] = x [N, I] weight^T [O, I] + bias [O] (optional); y = activation(z). z is optional: it
/// is what backward needs when there is an activation; with Activation::none only y is written.
TAPEFORMER_KERNEL(linear_forward, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  Activation activation, const Tensor& z, const Tensor& y)
/// dz = dy activation'(z), optional for Activation::none alone, where it is dy;
/// dbias (+)= sum over rows of dz.
TAPEFORMER_KERNEL(bias_activation_backward, const Tensor& dy, const Tensor& z,
                  Activation activation, const Tensor& dz, const Destination& dbias)

/// y = silu(a) * b, the gate of SwiGLU (Shazeer 2020), x [N, 2F] = (a, b) -> y [N, F].
TAPEFORMER_KERNEL(swiglu_forward, const Tensor& x, const Tensor& y)
TAPEFORMER_KERNEL(swiglu_backward, const Tensor& dy, const Tensor& x, const Destination& dx)

// ---------------------------------------------------------------- norms

/// Layer norm (Ba et al. 2016, eq. 4) of s = alpha * residual + x over the last dimension:
///   mu = mean(s), v = mean((s - mu)^2), r = 1 / sqrt(v + epsilon), y = gamma (s - mu) r + beta.
/// residual, sum, gamma and beta are optional; without a residual s = x. mean and rstd [N] are kept
/// for backward.
TAPEFORMER_KERNEL(layer_norm_forward, const Tensor& x, const Tensor& residual, double alpha,
                  const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& sum,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd)
/// With h = gamma dy and xh = (s - mean) rstd:
///   ds (+)= dsum + rstd (h - mean(h) - xh mean(h xh));
///   dgamma (+)= sum_N dy xh;
///   dbeta (+)= sum_N dy.
/// dsum (optional) is the gradient that reaches s beside the norm. `detached`: mean and rstd count
/// as constants, so ds (+)= dsum + rstd h (DetachNorm of Xu et al. 2019, section 3).
TAPEFORMER_KERNEL(layer_norm_backward, const Tensor& dy, const Tensor& s, const Tensor& gamma,
                  const Tensor& mean, const Tensor& rstd, bool detached, const Tensor& dsum,
                  const Destination& ds, const Destination& dgamma, const Destination& dbeta)
/// RMS norm (Zhang & Sennrich 2019, eq. 4) of the same s:
///   r = 1 / sqrt(mean(s^2) + epsilon), y = gamma s r.
TAPEFORMER_KERNEL(rms_norm_forward, const Tensor& x, const Tensor& residual, double alpha,
                  const Tensor& gamma, double epsilon, const Tensor& sum, const Tensor& y,
                  const Tensor& rstd)
/// With h = gamma dy and xh = s rstd:
///   ds (+)= dsum + rstd (h - xh mean(h xh));
///   dgamma (+)= sum_N dy xh.
TAPEFORMER_KERNEL(rms_norm_backward, const Tensor& dy, const Tensor& s, const Tensor& gamma,
                  const Tensor& rstd, const Tensor& dsum, const Destination& ds,
                  const Destination& dgamma)

/// Wide: ScaleNorm (Nguyen & Salazar 2019, eq. 5), with one gain g [1] for all channels:
///   r = 1 / max(|x|, epsilon), |x| the Euclidean norm of a row, y = g x r.
/// rnorm [N] = r.
TAPEFORMER_KERNEL(scale_norm_forward, const Tensor& x, const Tensor& g, double epsilon,
                  const Tensor& y, const Tensor& rnorm)
/// With u = x rnorm:
///   dx (+)= g rnorm (dy - u (u . dy)), without the second term where |x| < epsilon;
///   dg (+)= sum of dy u.
TAPEFORMER_KERNEL(scale_norm_backward, const Tensor& dy, const Tensor& x, const Tensor& g,
                  double epsilon, const Tensor& rnorm, const Destination& dx, const Destination& dg)

/// Wide: dynamic tanh (Zhu et al. 2025, eq. 1), alpha [1]: y = gamma tanh(alpha x) + beta.
TAPEFORMER_KERNEL(dyt_forward, const Tensor& x, const Tensor& alpha, const Tensor& gamma,
                  const Tensor& beta, const Tensor& y)
/// With h = gamma dy and t = tanh(alpha x):
///   dx (+)= alpha h (1 - t^2);
///   dalpha (+)= sum of h (1 - t^2) x;
///   dgamma (+)= sum_N dy t;
///   dbeta (+)= sum_N dy.
TAPEFORMER_KERNEL(dyt_backward, const Tensor& dy, const Tensor& x, const Tensor& alpha,
                  const Tensor& gamma, const Destination& dx, const Destination& dalpha,
                  const Destination& dgamma, const Destination& dbeta)

/// Wide: moments of each channel of x [B,T,C] over its n real rows: row t of sample b is real when
/// lengths [B] (i32, optional) is not given or t < lengths[b]. n > 0.
///   mean [C] = sum x / n, variance [C] = sum (x - mean)^2 / n.
/// mean is optional: without it variance = sum x^2 / n (PowerNorm does not centre).
TAPEFORMER_KERNEL(batch_moments, const Tensor& x, const Tensor& lengths, const Tensor& mean,
                  const Tensor& variance)
/// Wide: batch norm (Ioffe & Szegedy 2015, algorithm 1), on every row, padding too:
///   xh = (x - mean) / sqrt(variance + epsilon), y = gamma xh + beta.
/// mean (0), gamma (1) and beta (0) are optional.
TAPEFORMER_KERNEL(batch_norm_forward, const Tensor& x, const Tensor& mean, const Tensor& variance,
                  double epsilon, const Tensor& gamma, const Tensor& beta, const Tensor& y)
/// With h = gamma dy, r = 1 / sqrt(variance + epsilon), and m = 1 for real rows, 0 for padding:
///   dx (+)= r (h - m sum(h) / n - m xh sum(h xh) / n), without the term of sum(h) where there is
///   no mean; dx (+)= r h where the moments are `constant`, not those of x;
///   dgamma (+)= sum dy xh, dbeta (+)= sum dy; all sums over all rows of a channel.
TAPEFORMER_KERNEL(batch_norm_backward, const Tensor& dy, const Tensor& x, const Tensor& lengths,
                  const Tensor& mean, const Tensor& variance, double epsilon, bool constant,
                  const Tensor& gamma, const Destination& dx, const Destination& dgamma,
                  const Destination& dbeta)

// ---------------------------------------------------------------- softmax, attention, positions

/// Wide: y = exp(x - max) / sum exp(x - max) over the last dimension; a row of -inf gives zeros.
TAPEFORMER_KERNEL(softmax_forward, const Tensor& x, const Tensor& y)
/// dx (+)= y (dy - sum(dy y)).
TAPEFORMER_KERNEL(softmax_backward, const Tensor& dy, const Tensor& y, const Destination& dx)
/// Wide: y = x - max - log sum exp(x - max).
TAPEFORMER_KERNEL(log_softmax_forward, const Tensor& x, const Tensor& y)
/// dx (+)= dy - exp(y) sum(dy).
TAPEFORMER_KERNEL(log_softmax_backward, const Tensor& dy, const Tensor& y, const Destination& dx)

struct AttentionShape {
  int64_t batch = 0, queries = 0, keys = 0;        // B, T, S
  int64_t heads = 0, kv_heads = 0, head_size = 0;  // H, a divisor of it, D
  bool causal = false;  // query t sees keys 0 ... t + S - T: the last query sees every key
  bool alibi = false;   // adds -slope(h) (t + S - T - s) to the scores (Press et al. 2022)
  double scale = 0;     // of the scores: 1 / sqrt(D)
};

/// Head h's slope in ALiBi: 2^(-8 (h + 1) / H) for H a power of two, otherwise interleaved with the
/// slopes of the next power of two, as in the paper's code.
double alibi_slope(int64_t head, int64_t heads);

/// out [B, T, H D] = softmax(scale q k^T + mask) v, without the T x S matrix in memory. Query head
/// h reads key-value head h / (H / kv_heads) (Ainslie et al. 2023). lengths [B] (i32, optional):
/// keys at or after lengths[b] are padding. lse [B, H, T] is log sum exp of the scores, for
/// backward. A query that sees no key gives zeros, and lse -inf.
TAPEFORMER_KERNEL(attention_forward, const Heads& q, const Heads& k, const Heads& v,
                  const Tensor& lengths, const AttentionShape& shape, const Tensor& out,
                  const Tensor& lse)
/// With p = exp(scale q k^T + mask - lse) and delta = sum_D(dout out) (Dao 2023, algorithm 2):
///   dv = p^T dout;
///   ds = p (dout v^T - delta);
///   dq = scale ds k;
///   dk = scale ds^T q.
TAPEFORMER_KERNEL(attention_backward, const Heads& q, const Heads& k, const Heads& v,
                  const Tensor& lengths, const AttentionShape& shape, const Tensor& out,
                  const Tensor& lse, const Tensor& dout, const Heads& dq, const Heads& dk,
                  const Heads& dv)

/// Rotary positions (Su et al. 2021, eq. 34): in the first `heads` heads of x [B, T, W], each pair
/// (x_i, x_{i + D/2}) turns by the angle (start + t) base^(-2i/D), backwards when `inverse`. The
/// other channels are copied. The pairing by halves is LLaMA's.
TAPEFORMER_KERNEL(rotary, const Tensor& x, int64_t heads, int64_t head_size, int64_t start,
                  double base, bool inverse, const Destination& y)

// ---------------------------------------------------------------- embedding and loss

/// y [N, C] = rows of table [V, C] by indices (i32, N of them). Indices were checked.
TAPEFORMER_KERNEL(embedding_forward, const Tensor& table, const Tensor& indices, const Tensor& y)
/// dtable[indices[n]] (+)= dy[n]; when not accumulating, all other rows become zero.
TAPEFORMER_KERNEL(embedding_backward, const Tensor& dy, const Tensor& indices,
                  const Destination& dtable)

/// count [1] = number of targets that are not ignore_index, at least 1.
TAPEFORMER_KERNEL(count_targets, const Tensor& targets, int32_t ignore_index, const Tensor& count)
/// Cross-entropy against the smoothed target q = (1 - smoothing) onehot + smoothing / V (Szegedy et
/// al. 2016, eq. 5), with p = softmax(logits [N, V]):
///   losses[n] = -sum_v q_v log p_v;
///   dlogits (optional) = (p - q) / count.
/// Both are 0 for ignored rows. Logits are wide; dlogits may be logits itself, or of a 16-bit
/// dtype.
TAPEFORMER_KERNEL(cross_entropy, const Tensor& logits, const Tensor& targets, const Tensor& count,
                  int32_t ignore_index, double smoothing, const Tensor& losses,
                  const Tensor& dlogits)

// ---------------------------------------------------------------- optimizer steps (wide)

// `rounded` is optional: p in a 16-bit dtype, written in the same pass.

/// Of gradients that are `scale` times too large:
///   norm [1] = sqrt(sum_of_squares) / scale;
///   factor [1] = min(1, max_norm / (norm + 1e-6)) / scale, 1 / scale when max_norm is 0.
/// The 1e-6 is PyTorch's: runs can be compared with it digit by digit. factor, 1 before the first
/// step, becomes NaN, with which a step below changes nothing, where the norm or one of `losses`
/// [n] (optional) is not finite. It stays NaN once it is: later steps, begun before anybody has
/// seen that, change nothing either.
TAPEFORMER_KERNEL(clip_factor, const Tensor& sum_of_squares, const Tensor& losses, double max_norm,
                  double scale, const Tensor& norm, const Tensor& factor)

struct AdamWStep {
  double lr, beta1, beta2, epsilon, weight_decay;
  double correction1, correction2;  // 1 - beta1^t, 1 - beta2^t
};
/// AdamW (Loshchilov & Hutter 2019, algorithm 2), with g = factor * gradient:
///   m = beta1 m + (1 - beta1) g;
///   v = beta2 v + (1 - beta2) g^2;
///   p = p - lr ((m / correction1) / (sqrt(v / correction2) + epsilon) + weight_decay p).
/// The decay is multiplied by lr too, as in PyTorch; in the paper only by the schedule's factor.
TAPEFORMER_KERNEL(adamw_step, const Tensor& p, const Tensor& gradient, const Tensor& factor,
                  const Tensor& m, const Tensor& v, const AdamWStep& step, const Tensor& rounded)
/// SGD with momentum, g = factor * gradient + weight_decay p:
///   velocity = momentum velocity + g;
///   p = p - lr velocity.
/// velocity is optional (momentum 0). This is PyTorch's form: Sutskever et al. 2013, eq. 1, have lr
/// inside the velocity, which differs where lr changes.
TAPEFORMER_KERNEL(sgd_step, const Tensor& p, const Tensor& gradient, const Tensor& factor,
                  const Tensor& velocity, double lr, double momentum, double weight_decay,
                  const Tensor& rounded)

}  // namespace kernels
}  // namespace tapeformer
