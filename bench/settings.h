// The training steps that are measured: four sizes of GPT, and the matrix products of each.
#pragma once

#include <string>
#include <vector>

#include "core/check.h"
#include "layers/config.h"

namespace tapeformer::bench {

struct Setting {
  std::string name;
  int64_t layers, heads, channels, context, batch, vocabulary;
  bool bias = false;

  int64_t tokens() const { return batch * context; }
  TransformerConfig config() const {
    return {.vocabulary = vocabulary,
            .context = context,
            .layers = layers,
            .heads = heads,
            .channels = channels,
            .bias = bias};
  }
};

inline std::vector<Setting> settings() {
  return {{"tiny", 4, 4, 128, 64, 12, 65},
          {"baby", 6, 6, 384, 256, 16, 65},
          {"gpt2", 12, 12, 768, 64, 4, 50257},
          {"gpt2-256", 12, 12, 768, 256, 4, 50257}};
}

inline Setting find_setting(const std::string& name) {
  std::string known;
  for (const Setting& setting : settings()) {
    if (setting.name == name) return setting;
    known += (known.empty() ? "" : ", ") + setting.name;
  }
  fail("there is no setting '", name, "'; known are ", known);
}

/// `batch` products c [m, n] = op(a) op(b) over k, of which a step runs `count`. `share` of each is
/// needed: a causal product half.
struct Product {
  std::string name;
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  int64_t batch, count;
  double share;

  double flops() const { return 2.0 * m * n * k * batch * share; }
};

/// Every product of a training step. A linear layer has three: y = x W^T, dx = dy W, dW = dy^T x.
inline std::vector<Product> products_of(const Setting& s) {
  const int64_t N = s.tokens(), C = s.channels, T = s.context, D = s.channels / s.heads;
  std::vector<Product> products;
  const auto add_linear = [&](const std::string& name, int64_t inputs, int64_t outputs,
                              int64_t count) {
    products.push_back({name, N, outputs, inputs, false, true, 1, count, 1});
    products.push_back({name + " dx", N, inputs, outputs, false, false, 1, count, 1});
    products.push_back({name + " dW", outputs, inputs, N, true, false, 1, count, 1});
  };
  add_linear("qkv", C, 3 * C, s.layers);
  add_linear("output", C, C, s.layers);
  add_linear("up", C, 4 * C, s.layers);
  add_linear("down", 4 * C, C, s.layers);
  const int64_t heads = s.batch * s.heads;
  products.push_back({"q k^T; dout v^T", T, T, D, false, true, heads, 2 * s.layers, 0.5});
  products.push_back({"p v; ds k", T, D, T, false, false, heads, 2 * s.layers, 0.5});
  products.push_back({"p^T dout; ds^T q", T, D, T, true, false, heads, 2 * s.layers, 0.5});
  add_linear("logits", C, s.vocabulary, 1);
  return products;
}

}  // namespace tapeformer::bench
