// Every differentiable operation. Each checks its arguments, allocates its result, calls one kernel
// of core/kernels.h and records one closure; the .cpp files beside this one hold them side by side
// with their backward. Errors (tapeformer::Error) begin with the operation's name.
#pragma once

#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "core/kernels.h"

namespace tapeformer {

using kernels::Activation;

// ---- Element-wise (elementwise.cpp). Two tensors broadcast as in NumPy; their dtypes are equal.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& x, double exponent);
/// scale * x + shift.
Tensor affine(const Tensor& x, double scale, double shift);
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);       ///< x Phi(x), with erf.
Tensor gelu_tanh(const Tensor& x);  ///< GPT-2's form.
Tensor silu(const Tensor& x);
/// condition (i32) ? a : b.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// x with `value` wherever mask (i32, broadcast to x) is not 0.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// lengths [B] (i32) -> a mask [B, T] on `device`: 1 at times t >= lengths[b], which are padding.
Tensor padding_mask(const Tensor& lengths, int64_t T, Device device);
/// Zeroes each element with probability p and divides the others by 1 - p (Srivastava et al. 2014);
/// the identity when not training. Draws its key from the RandomScope. 0 <= p < 1.
Tensor dropout(const Tensor& x, double p, bool training = true);
/// x in another dtype; to i32 only without a gradient.
Tensor cast(const Tensor& x, DType dtype);
/// x as f32 where it is of a 16-bit dtype, else x itself; undefined stays undefined.
Tensor widened(const Tensor& x);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator+(const Tensor& x, double c) { return affine(x, 1, c); }
inline Tensor operator+(double c, const Tensor& x) { return affine(x, 1, c); }
inline Tensor operator-(const Tensor& x, double c) { return affine(x, 1, -c); }
inline Tensor operator-(double c, const Tensor& x) { return affine(x, -1, c); }
inline Tensor operator*(const Tensor& x, double c) { return affine(x, c, 0); }
inline Tensor operator*(double c, const Tensor& x) { return affine(x, c, 0); }
inline Tensor operator/(const Tensor& x, double c) { return affine(x, 1 / c, 0); }
inline Tensor operator/(double c, const Tensor& x) { return affine(pow(x, -1), c, 0); }

// ---- Reductions (reduce.cpp). `dim` may be negative; keep_dim leaves a size of 1. NaN is larger
// than all numbers, and the gradient of max goes to the first of equals.
Tensor sum(const Tensor& x);  ///< of all elements, shape [].
Tensor mean(const Tensor& x);
Tensor max(const Tensor& x);
Tensor sum(const Tensor& x, int dim, bool keep_dim = false);
Tensor mean(const Tensor& x, int dim, bool keep_dim = false);
Tensor max(const Tensor& x, int dim, bool keep_dim = false);

// ---- Shapes (shape.cpp).
/// One size may be -1.
Tensor reshape(const Tensor& x, std::initializer_list<int64_t> sizes);
Tensor reshape(const Tensor& x, const Shape& shape);
/// Dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const std::vector<int>& order);
Tensor transpose(const Tensor& x, int dim0, int dim1);
/// Elements [begin, end) along dim.
Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end);
/// Parts [.., n_i, ..], which differ in `dim` alone -> [.., n_1 + n_2 + .., ..].
Tensor concat(const std::vector<Tensor>& parts, int dim);
/// Parts of equal shape along a new dimension: n of [A, B] -> [n, A, B]; [A, B, n] for dim -1.
Tensor stack(const std::vector<Tensor>& parts, int dim = 0);

// ---- Matrix products (matmul.cpp).
/// a [.., M, K], b [.., K, N] -> [.., M, N], each transposed (last two dimensions) on request.
/// Leading dimensions are equal, or one of the two has none.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);
/// x [.., I], weight [O, I], bias [O] or undefined -> activation(x weight^T + bias) [.., O].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Activation activation = Activation::none);
/// x [.., 2F] = (a, b) -> silu(a) * b [.., F] (Shazeer 2020).
Tensor swiglu(const Tensor& x);

// ---- Norms (norm.cpp), over the last dimension.
/// Ba et al. 2016. gamma, beta [C] may be undefined. `detached`: backward takes mean and deviation
/// for constants (Xu et al. 2019).
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon = 1e-5,
                  bool detached = false);
/// Zhang & Sennrich 2019. gamma [C] may be undefined.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double epsilon = 1e-5);
struct SumAndNorm {
  Tensor sum, norm;
};
/// sum = alpha residual + x, and its norm, in one pass over memory: residual and x [.., C], of one
/// shape, gamma and beta [C] or undefined -> sum and norm [.., C].
SumAndNorm add_layer_norm(const Tensor& residual, const Tensor& x, double alpha,
                          const Tensor& gamma, const Tensor& beta, double epsilon = 1e-5,
                          bool detached = false);
SumAndNorm add_rms_norm(const Tensor& residual, const Tensor& x, double alpha, const Tensor& gamma,
                        double epsilon = 1e-5);

/// g x / max(|x|, epsilon), g [1] (Nguyen & Salazar 2019).
Tensor scale_norm(const Tensor& x, const Tensor& g, double epsilon = 1e-5);
/// gamma tanh(alpha x) + beta; alpha [1], gamma and beta [C] (Zhu et al. 2025).
Tensor dyt(const Tensor& x, const Tensor& alpha, const Tensor& gamma, const Tensor& beta);

// ---- Batch statistics (batch_norm.cpp), over all rows of x [B,T,C] but padding: lengths [B] i32,
// optional, on either device; on the host they are counted without a wait for a GPU. Throws where
// they leave no row.
/// Moments of each channel [C], the variance biased. Without centring mean is undefined and the
/// variance the mean of x^2.
struct Moments {
  Tensor mean, variance;
  int64_t rows = 0;  ///< how many counted
};
/// Not differentiable by itself: batch_norm is.
Moments batch_moments(const Tensor& x, const Tensor& lengths, bool centred = true);
/// gamma (x - mean) / sqrt(variance + epsilon) + beta on every row (Ioffe & Szegedy 2015). gamma
/// and beta [C] may be undefined. `constant`: the moments are running ones and no function of x;
/// otherwise they must be batch_moments(x, lengths), and backward goes through them.
Tensor batch_norm(const Tensor& x, const Tensor& lengths, const Moments& moments, bool constant,
                  const Tensor& gamma, const Tensor& beta, double epsilon = 1e-5);

// ---- Attention (attention.cpp).
/// Over `dim`, of x's shape; a row of -inf gives zeros.
Tensor softmax(const Tensor& x, int dim = -1);
/// log(softmax(x)), of x's shape.
Tensor log_softmax(const Tensor& x, int dim = -1);
struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  bool causal = false;   ///< query t of T sees keys 0 ... t + S - T of S
  bool alibi = false;  ///< a penalty of the scores that grows with the distance (Press et al. 2022)
  /// [B] i32, optional, on either device: keys at or after lengths[b] are padding.
  Tensor lengths = {};
  double scale = 0;  ///< 0: 1 / sqrt(head size)
};
/// q [B, T, H D], k and v [B, S, K D] -> [B, T, H D] (Vaswani et al. 2017, eq. 1).
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options);
/// The same from one tensor [B, T, (H + 2 K) D] that holds q, k and v side by side.
Tensor attention(const Tensor& qkv, const AttentionOptions& options);
/// Queries against the first `keys` rows of cache tensors [B, capacity, K D]; not differentiable.
Tensor attention_cached(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, int64_t keys,
                        const AttentionOptions& options);
/// Turns the first `heads` heads of x [B, T, W] by their positions start + t (Su et al. 2021).
Tensor rotary(const Tensor& x, int64_t heads, int64_t head_size, int64_t start = 0,
              double base = 10000);

// ---- Embedding and loss (loss.cpp).
/// table [V, C], indices (i32, any shape) -> [.., C]. Throws for an index outside the table.
/// Indices may lie on the CPU wherever the table is; those on a GPU are not looked at.
Tensor embedding(const Tensor& table, const Tensor& indices);
struct CrossEntropyOptions {
  int32_t ignore_index = -1;  ///< targets with this value do not count
  double smoothing = 0;       ///< Szegedy et al. 2016
};
/// Mean over the targets that count: logits [.., V], targets (i32) [..] -> []. Targets may lie on
/// the CPU, like the indices of an embedding.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& = {});
/// cross_entropy(linear(x, weight), targets), without keeping logits and their gradient apart, and
/// in chunks of rows where the logits would take more than `chunk_bytes`. x [.., C], weight [V, C].
/// 0 bytes: 64 MB on the CPU, 1 GB on a GPU, where each chunk reads and writes all of dW once more.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, size_t chunk_bytes = 0);

}  // namespace tapeformer
