// One Transformer block with causal self-attention, written with the plain operators: every formula
// of the fused path, one line each. docs/tour.md walks through it; tests/tour_test.cpp shows that
// it equals the library's pre-norm block, in values and in gradients.
#pragma once

#include <cmath>
#include <limits>

#include "autograd/ops.h"

namespace tapeformer {

struct BlockByHand {
  int64_t heads;
  Tensor norm1_weight, norm1_bias;   // [C]
  Tensor query, key, value, output;  // [C, C]
  Tensor norm2_weight, norm2_bias;   // [C]
  Tensor up, down;                   // [4C, C], [C, 4C]

  // (x - mean) / sqrt(variance + epsilon), then gain and bias.
  static Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const Tensor centred = x - mean(x, -1, true);
    const Tensor variance = mean(centred * centred, -1, true);
    return centred / sqrt(variance + 1e-5) * weight + bias;
  }

  // [B,T,C] -> [B,H,T,D]
  Tensor split_heads(const Tensor& x) const {
    return permute(reshape(x, {x.dim(0), x.dim(1), heads, -1}), {0, 2, 1, 3});
  }

  // 1 where the key (column) comes after the query (row).
  static Tensor future(int64_t time) {
    std::vector<int32_t> mask;
    for (int64_t t = 0; t < time; ++t)
      for (int64_t s = 0; s < time; ++s) mask.push_back(s > t);
    return Tensor::from(mask, {time, time});
  }

  // softmax(q k^T / sqrt(D)) v, each query seeing itself and what came before it.
  Tensor attention(const Tensor& x) const {
    const Tensor q = split_heads(matmul(x, query, false, true));
    const Tensor k = split_heads(matmul(x, key, false, true));
    const Tensor v = split_heads(matmul(x, value, false, true));
    const Tensor scores = matmul(q, k, false, true) / std::sqrt(double(q.dim(-1)));
    const double minus_infinity = -std::numeric_limits<double>::infinity();
    const Tensor weights = softmax(masked_fill(scores, future(x.dim(1)), minus_infinity));
    const Tensor heads_joined = reshape(permute(matmul(weights, v), {0, 2, 1, 3}), x.shape());
    return matmul(heads_joined, output, false, true);
  }

  Tensor feed_forward(const Tensor& x) const {
    return matmul(gelu_tanh(matmul(x, up, false, true)), down, false, true);
  }

  // x = x + f(N(x)), twice.
  Tensor forward(Tensor x) const {
    x = x + attention(layer_norm(x, norm1_weight, norm1_bias));
    return x + feed_forward(layer_norm(x, norm2_weight, norm2_bias));
  }
};

}  // namespace tapeformer
