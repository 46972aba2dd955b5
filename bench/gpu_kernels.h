// Kernels alone, at the sizes of a training step: how long each takes, and what its bytes or its
// operations are.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/settings.h"
#include "core/kernels.h"

namespace tapeformer::bench {

struct KernelTime {
  std::string name;
  double ms;
  double bytes;  ///< that it reads and writes at the least, however it is written
  double flops;  ///< of matrix products; 0 where bytes are the limit
};

class KernelTimes {
 public:
  KernelTimes(const Setting& setting, int64_t parameters, DType dtype, Device device)
      : setting_(setting), parameters_(parameters), dtype_(dtype), device_(device) {
    time_norms();
    time_wide_norms();
    time_softmax();
    time_elementwise();
    time_embedding();
    time_optimizers();
    time_attention();
    time_products();
  }
  const std::vector<KernelTime>& times() const { return times_; }

 private:
  // Random numbers in memory of its own, as are all tensors of one function.
  Tensor tensor(const Shape& shape, DType dtype) const {
    const Tensor x = Tensor::empty(shape, dtype, device_);
    kernels::fill_uniform(x, 0.5, 1, RandomKey{1});
    return x;
  }
  Tensor tensor(const Shape& shape) const { return tensor(shape, dtype_); }
  Tensor wide_tensor(const Shape& shape) const { return tensor(shape, wide(dtype_)); }

  // `moved`: what the kernel reads and writes, a tensor that it does both with twice.
  template <class F>
  void time(const std::string& name, const std::vector<Tensor>& moved, const F& f,
            double flops = 0) {
    double bytes = 0;
    for (const Tensor& x : moved) bytes += static_cast<double>(x.bytes());
    times_.push_back({name, least_milliseconds(device_, f), bytes, flops});
  }

  void time_norms() {
    const int64_t N = setting_.tokens(), C = setting_.channels;
    const Tensor x = tensor({N, C}), residual = tensor({N, C}), sum = tensor({N, C});
    const Tensor y = tensor({N, C}), gamma = tensor({C}), beta = tensor({C});
    const Tensor mean = wide_tensor({N}), rstd = wide_tensor({N});
    const Destination ds{y}, dgamma{wide_tensor({C})}, dbeta{wide_tensor({C})};
    const Tensor none;
    time("layer_norm", {x, y},
         [&] { kernels::layer_norm_forward(x, none, 1, gamma, beta, 1e-5, none, y, mean, rstd); });
    time("layer_norm, residual + x", {x, residual, sum, y}, [&] {
      kernels::layer_norm_forward(x, residual, 1, gamma, beta, 1e-5, sum, y, mean, rstd);
    });
    time("layer_norm backward", {x, sum, y}, [&] {
      kernels::layer_norm_backward(x, sum, gamma, mean, rstd, false, none, ds, dgamma, dbeta);
    });
    time("layer_norm backward, + dsum", {x, sum, residual, y}, [&] {
      kernels::layer_norm_backward(x, sum, gamma, mean, rstd, false, residual, ds, dgamma, dbeta);
    });
    time("rms_norm, residual + x", {x, residual, sum, y},
         [&] { kernels::rms_norm_forward(x, residual, 1, gamma, 1e-5, sum, y, rstd); });
    time("rms_norm backward, + dsum", {x, sum, residual, y},
         [&] { kernels::rms_norm_backward(x, sum, gamma, rstd, residual, ds, dgamma); });
  }

  void time_wide_norms() {
    const int64_t N = setting_.tokens(), C = setting_.channels;
    const Tensor x = wide_tensor({setting_.batch, setting_.context, C}), dy = x.clone();
    const Tensor y = x.clone(), gamma = wide_tensor({C}), beta = wide_tensor({C});
    const Tensor mean = wide_tensor({C}), variance = wide_tensor({C}), rnorm = wide_tensor({N});
    const Tensor one = wide_tensor({1}), none;
    const Destination dx{y}, dgamma{wide_tensor({C})}, dbeta{wide_tensor({C})};
    const Destination done{wide_tensor({1})};
    time("scale_norm", {x, y}, [&] { kernels::scale_norm_forward(x, one, 1e-5, y, rnorm); });
    time("scale_norm backward", {dy, x, y},
         [&] { kernels::scale_norm_backward(dy, x, one, 1e-5, rnorm, dx, done); });
    time("dyt", {x, y}, [&] { kernels::dyt_forward(x, one, gamma, beta, y); });
    time("dyt backward", {dy, x, y},
         [&] { kernels::dyt_backward(dy, x, one, gamma, dx, done, dgamma, dbeta); });
    // The moments are taken in two passes, and so are the gradients: sums first, then dx.
    time("batch_moments", {x, x}, [&] { kernels::batch_moments(x, none, mean, variance); });
    time("batch_norm", {x, y},
         [&] { kernels::batch_norm_forward(x, mean, variance, 1e-5, gamma, beta, y); });
    time("batch_norm backward", {dy, x, dy, x, y}, [&] {
      kernels::batch_norm_backward(dy, x, none, mean, variance, 1e-5, false, gamma, dx, dgamma,
                                   dbeta);
    });
  }

  void time_softmax() {
    const int64_t T = setting_.context, V = setting_.vocabulary;
    {
      const Tensor x = wide_tensor({setting_.tokens(), T}), y = x.clone(), dx = x.clone();
      time("softmax", {x, y}, [&] { kernels::softmax_forward(x, y); });
      time("softmax backward", {x, y, dx},
           [&] { kernels::softmax_backward(x, y, Destination{dx}); });
    }
    // As many rows of logits as linear_cross_entropy takes at a time.
    const int64_t N = std::clamp<int64_t>((int64_t{1} << 28) / V, 1, setting_.tokens());
    const Tensor logits = wide_tensor({N, V}), losses = wide_tensor({N}), count = wide_tensor({1});
    const Tensor targets = Tensor::zeros({N}, DType::i32, device_);
    const Tensor dlogits = is_16bit(dtype_) ? tensor({N, V}) : logits;
    time("cross_entropy", {logits, dlogits},
         [&] { kernels::cross_entropy(logits, targets, count, -1, 0, losses, dlogits); });
  }

  void time_elementwise() {
    const int64_t N = setting_.tokens(), C = setting_.channels, F = 4 * C;
    const Tensor x = tensor({N, F}), dy = tensor({N, F}), y = tensor({N, F});
    const Tensor small = tensor({N, C}), other = tensor({N, C}), result = tensor({N, C});
    const Destination dbias{wide_tensor({F})};
    const Tensor none;
    using kernels::Activation, kernels::Binary, kernels::Unary;
    time("gelu", {x, y}, [&] { kernels::unary_forward(x, y, Unary::gelu_tanh); });
    time("gelu and bias backward", {dy, x, y},
         [&] { kernels::bias_activation_backward(dy, x, Activation::gelu_tanh, y, dbias); });
    time("bias backward", {dy},
         [&] { kernels::bias_activation_backward(dy, none, Activation::none, none, dbias); });
    const Tensor pair = x.view({N / 2, 2 * F});  // an even number of tokens
    const Tensor half = y.rows(0, N / 2), dhalf = dy.rows(0, N / 2);
    time("swiglu", {pair, half}, [&] { kernels::swiglu_forward(pair, half); });
    const Destination dpair{tensor({N / 2, 2 * F})};
    time("swiglu backward", {dhalf, pair, dpair.tensor},
         [&] { kernels::swiglu_backward(dhalf, pair, dpair); });
    time("add", {small, other, result},
         [&] { kernels::binary_forward(small, other, Binary::add, result); });
    time("dropout", {small, result},
         [&] { kernels::dropout(small, 0.1, RandomKey{1}, Destination{result}); });
  }

  void time_embedding() {
    const int64_t N = setting_.tokens(), C = setting_.channels, V = setting_.vocabulary;
    Tensor tokens = Tensor::empty({N}, DType::i32);
    for (int64_t n = 0; n < N; ++n) tokens.data<int32_t>()[n] = static_cast<int32_t>(n * 7919 % V);
    tokens = tokens.to(device_);
    const Tensor table = tensor({V, C}), rows = tensor({N, C});
    const Destination dtable{wide_tensor({V, C})};
    time("embedding", {rows, rows}, [&] { kernels::embedding_forward(table, tokens, rows); });
    time("embedding backward", {rows, dtable.tensor},
         [&] { kernels::embedding_backward(rows, tokens, dtable); });
  }

  void time_optimizers() {
    const Tensor p = wide_tensor({parameters_}), gradient = p.clone(), m = p.clone();
    const Tensor v = p.clone(), sum = wide_tensor({1}), factor = wide_tensor({1});
    const Tensor rounded = is_16bit(dtype_) ? tensor({parameters_}) : Tensor{};
    std::vector<Tensor> moved = {p, p, gradient, m, m};
    if (rounded.defined()) moved.push_back(rounded);
    time("sum_of_squares", {gradient}, [&] { kernels::sum_of_squares(gradient, sum); });
    time("sgd_step", moved,
         [&] { kernels::sgd_step(p, gradient, factor, m, 1e-4, 0.9, 0, rounded); });
    moved.insert(moved.end(), {v, v});
    const kernels::AdamWStep step{1e-4, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.5};
    time("adamw_step", moved,
         [&] { kernels::adamw_step(p, gradient, factor, m, v, step, rounded); });
  }

  void time_attention() {
    const int64_t B = setting_.batch, T = setting_.context, H = setting_.heads;
    const int64_t C = setting_.channels;
    const Tensor qkv = tensor({B, T, 3 * C}), dqkv = qkv.clone(), out = tensor({B, T, C});
    const Tensor dout = out.clone(), lse = wide_tensor({B, H, T}), none;
    const kernels::AttentionShape shape{
        B, T, T, H, H, C / H, true, false, 1 / std::sqrt(static_cast<double>(C / H))};
    const auto heads = [&](const Tensor& x, int64_t part) {
      return Heads{x, part * C, T * 3 * C, 3 * C};
    };
    const double flops = 2.0 * static_cast<double>(B * T * T * C);  // two products, half of each
    time(
        "attention", {qkv, out},
        [&] {
          kernels::attention_forward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), none, shape, out,
                                     lse);
        },
        flops);
    time(
        "attention backward", {qkv, out, dout, dqkv},
        [&] {
          kernels::attention_backward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), none, shape, out,
                                      lse, dout, heads(dqkv, 0), heads(dqkv, 1), heads(dqkv, 2));
        },
        2.5 * flops);
  }

  void time_products() {
    for (const Product& product : products_of(setting_)) {
      if (product.share < 1) continue;  // attention's
      const auto [m, n, k] = std::array{product.m, product.n, product.k};
      const Tensor a = tensor(product.transpose_a ? Shape{k, m} : Shape{m, k});
      const Tensor b = tensor(product.transpose_b ? Shape{n, k} : Shape{k, n});
      // Gradients of weights are wide, and so are logits.
      const bool is_wide = product.transpose_a || product.name == "logits";
      const Tensor c = is_wide ? wide_tensor({m, n}) : tensor({m, n});
      time(
          "product: " + product.name, {a, b, c},
          [&] {
            kernels::matmul(a, product.transpose_a, b, product.transpose_b, 1, Destination{c});
          },
          product.flops());
    }
  }

  Setting setting_;
  int64_t parameters_;
  DType dtype_;
  Device device_;
  std::vector<KernelTime> times_;
};

}  // namespace tapeformer::bench
