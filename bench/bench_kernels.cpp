// Times single kernels and operations beside something that bounds them: a plain copy of the same
// bytes, or the same formula composed of plain operators. (bench_norms: layer norm and RMS norm.)
//
//   bench_kernels                           everything
//   bench_kernels loss attention            these sections only
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "bench/compare.h"
#include "bench/floor.h"
#include "core/threads.h"

using namespace tapeformer;
using namespace tapeformer::bench;

namespace {

constexpr int64_t out_of_cache = int64_t{1} << 24;  // floats, 64 MB

/// Copies `floats` floats, reading and writing each: what a kernel with that traffic is held to.
class Copy {
 public:
  explicit Copy(int64_t floats) : from_(random_tensor({floats})), to_(random_tensor({floats})) {}
  void operator()() const { kernels::copy(from_, to_); }

 private:
  Tensor from_, to_;
};

// ---------------------------------------------------------------- the tape

void bench_tape() {
  constexpr int length = 10'000;
  std::printf("\na chain of %d additions of 8 floats, forward and backward\n", length);
  const Tensor x = random_leaf({8}), constant = random_tensor({8});
  const auto chain = [&](const Tensor& term) {
    return ForwardBackward({x}, [&x, term] {
      Tensor y = x;
      for (int i = 0; i < length; ++i) y = y + term;
      return y;
    });
  };
  const double of_constant = warm_milliseconds(300, chain(constant));
  const double of_leaf = warm_milliseconds(300, chain(x));
  std::printf("%-46s %11.0f ns each\n", "a constant is added", 1e6 * of_constant / length);
  std::printf("%-46s %11.0f ns each\n", "a leaf is added", 1e6 * of_leaf / length);
}

// ---------------------------------------------------------------- fused against composed

void bench_loss_of(int64_t N, int64_t V) {
  const Tensor logits = random_leaf({N, V}), targets = random_indices({N}, V);
  const Tensor onehot = Tensor::zeros({N, V});
  for (int64_t n = 0; n < N; ++n) onehot.data<float>()[n * V + targets.data<int32_t>()[n]] = 1;
  const auto composed = [&] { return sum(log_softmax(logits) * onehot) * (-1.0 / N); };
  const std::string size = " [" + std::to_string(N) + ", " + std::to_string(V) + "]";
  print_line("softmax + cross-entropy" + size,
             compare(ForwardBackward({logits}, [&] { return cross_entropy(logits, targets); }),
                     ForwardBackward({logits}, composed)));
  const Tensor x = random_leaf({N, 128}), weight = random_leaf({V, 128});
  print_line(
      "projection + cross-entropy" + size,
      compare(
          ForwardBackward({x, weight}, [&] { return linear_cross_entropy(x, weight, targets); }),
          ForwardBackward({x, weight}, [&] { return cross_entropy(linear(x, weight), targets); })));
}

void bench_loss() {
  print_heading("loss, forward and backward", "fused", "composed");
  bench_loss_of(4096, 65);
  bench_loss_of(256, 50257);
}

void bench_linear() {
  print_heading("linear + bias + activation, forward and backward", "fused", "composed");
  for (const int64_t C : {128, 384}) {
    const Tensor x = random_leaf({4096, C}), weight = random_leaf({4 * C, C});
    const Tensor bias = random_leaf({4 * C});
    const std::string size = " " + std::to_string(C) + " -> " + std::to_string(4 * C);
    const auto compare_activation = [&](const char* name, Activation activation,
                                        Tensor (*composed)(const Tensor&)) {
      print_line(name + size,
                 compare(ForwardBackward({x, weight, bias},
                                         [&] { return linear(x, weight, bias, activation); }),
                         ForwardBackward({x, weight, bias}, [&] {
                           return composed(matmul(x, weight, false, true) + bias);
                         })));
    };
    compare_activation("gelu", Activation::gelu, gelu);
    compare_activation("gelu_tanh", Activation::gelu_tanh, gelu_tanh);
    compare_activation("silu", Activation::silu, silu);
    compare_activation("relu", Activation::relu, relu);
  }
}

void bench_norms() {
  print_heading("norms with one scalar, forward and backward", "fused", "composed");
  for (const int64_t C : {128, 1024}) {
    const Tensor x = random_leaf({4096, C}), g = random_leaf({1});
    const Tensor gamma = random_leaf({C}), beta = random_leaf({C});
    const std::string size = " [4096, " + std::to_string(C) + "]";
    print_line("scale_norm" + size,
               compare(ForwardBackward({x, g}, [&] { return scale_norm(x, g); }),
                       ForwardBackward({x, g},
                                       [&] { return g * (x * pow(sum(x * x, -1, true), -0.5)); })));
    print_line(
        "dyt" + size,
        compare(ForwardBackward({x, g, gamma, beta}, [&] { return dyt(x, g, gamma, beta); }),
                ForwardBackward({x, g, gamma, beta}, [&] { return gamma * tanh(g * x) + beta; })));
  }
}

// softmax(q k^T / sqrt(D) + mask) v of qkv [B,T,3 H D], with nothing but plain operators.
Tensor composed_attention(const Tensor& qkv, int64_t H, const Tensor& future) {
  const int64_t B = qkv.dim(0), T = qkv.dim(1), C = qkv.dim(2) / 3, D = C / H;
  const auto heads = [&](int64_t i) {
    return permute(reshape(slice(qkv, 2, i * C, (i + 1) * C), {B, T, H, D}), {0, 2, 1, 3});
  };
  const Tensor scores = matmul(heads(0), heads(1), false, true) * (1 / std::sqrt(double(D)));
  const Tensor p = softmax(masked_fill(scores, future, -INFINITY));
  return reshape(permute(matmul(p, heads(2)), {0, 2, 1, 3}), {B, T, C});
}

void bench_attention_of(int64_t B, int64_t T, int64_t H, int64_t D) {
  const Tensor qkv = random_leaf({B, T, 3 * H * D});
  const Tensor future = Tensor::zeros({T, T}, DType::i32);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t s = t + 1; s < T; ++s) future.data<int32_t>()[t * T + s] = 1;
  char name[64];
  std::snprintf(name, sizeof name, "B %ld, T %ld, H %ld, D %ld", B, T, H, D);
  const AttentionOptions options{.heads = H, .causal = true};
  print_line(name,
             compare(ForwardBackward({qkv}, [&] { return attention(qkv, options); }),
                     ForwardBackward({qkv}, [&] { return composed_attention(qkv, H, future); })));
}

void bench_attention() {
  print_heading("causal attention, forward and backward", "fused", "composed");
  bench_attention_of(12, 64, 4, 32);
  bench_attention_of(16, 256, 6, 64);
  bench_attention_of(4, 64, 12, 64);
  bench_attention_of(4, 256, 12, 64);
  bench_attention_of(1, 1024, 12, 64);
}

// ---------------------------------------------------------------- against memory

void bench_optimizer() {
  print_heading("AdamW, with its 28 bytes a parameter", "step", "its traffic");
  for (const int64_t n : {int64_t{800'000}, int64_t{10'700'000}, int64_t{40'000'000}}) {
    const Tensor p = random_tensor({n}), g = random_tensor({n});
    const Tensor m = Tensor::zeros({n}), v = Tensor::zeros({n}), factor = Tensor::full({1}, 1);
    const Tensor traffic_p = p.clone(), traffic_m = m.clone(), traffic_v = v.clone();
    const kernels::AdamWStep step{1e-4, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.5};
    const Comparison c =
        compare([&] { kernels::adamw_step(p, g, factor, m, v, step, Tensor{}); },
                [&] {
                  adamw_traffic(traffic_p.data<float>(), g.data<float>(), traffic_m.data<float>(),
                                traffic_v.data<float>(), n, num_threads());
                });
    char name[64];
    std::snprintf(name, sizeof name, "%.1f million parameters, %.1f GB/s", n / 1e6,
                  28e-6 * n / c.ours);
    print_line(name, c);
  }
}

void bench_elementwise() {
  using kernels::Unary;
  for (const int64_t n : {int64_t{1} << 19, out_of_cache}) {
    print_heading(n == out_of_cache ? "element-wise, out of cache" : "element-wise, in cache",
                  "function", "copy");
    const Tensor x = random_tensor({n}), dy = random_tensor({n}), y = x.empty_like(), none;
    const Copy copy(n);
    const auto forward = [&](const char* name, Unary f) {
      const Comparison c = compare([&] { kernels::unary_forward(x, y, f); }, copy, 100);
      char line[64];
      std::snprintf(line, sizeof line, "%-18s %8.2f elements per ns", name, 1e-6 * n / c.ours);
      print_line(line, c);
    };
    forward("exp", Unary::exp);
    forward("log", Unary::log);
    forward("tanh", Unary::tanh);
    forward("sigmoid", Unary::sigmoid);
    forward("gelu", Unary::gelu);
    forward("gelu_tanh", Unary::gelu_tanh);
    forward("silu", Unary::silu);
    const auto backward = [&] {
      kernels::unary_backward(dy, x, none, Unary::gelu_tanh, Destination{y});
    };
    const auto copies = [&] { copy(), copy(); };  // it reads two and writes one
    print_line("gelu_tanh backward, against two copies", compare(backward, copies, 100));
  }
}

void bench_embedding_of(int64_t N, int64_t V, int64_t C) {
  const Tensor table = random_tensor({V, C}), indices = random_indices({N}, V);
  const Tensor y = random_tensor({N, C}), dtable = Tensor::zeros({V, C});
  const std::string name =
      std::to_string(N) + " of " + std::to_string(V) + " rows of " + std::to_string(C);
  const Copy copy(N * C);
  print_line(name + ", forward",
             compare([&] { kernels::embedding_forward(table, indices, y); }, copy, 100));
  print_line(name + ", added to dtable",
             compare(
                 [&] {
                   kernels::embedding_backward(y, indices, Destination{dtable, true});
                 },
                 copy, 100));
}

void bench_embedding() {
  print_heading("embedding", "embedding", "copy");
  bench_embedding_of(4096, 65, 384);
  bench_embedding_of(1024, 50257, 768);
}

// ---------------------------------------------------------------- products

void bench_products() {
  for (const Setting& setting : settings()) {
    const std::vector<Product> products = products_of(setting);
    Floor floor(products, Operands(products, 1), num_threads());
    for (int round = 0; round < 3; ++round) floor.round_of_products();
    std::printf("\nproducts of %s; of causal ones, the half that is needed\n",
                setting.name.c_str());
    floor.print();
  }
}

const std::vector<std::pair<std::string, void (*)()>> sections = {
    {"tape", bench_tape},
    {"loss", bench_loss},
    {"linear", bench_linear},
    {"norms", bench_norms},
    {"attention", bench_attention},
    {"optimizer", bench_optimizer},
    {"elementwise", bench_elementwise},
    {"embedding", bench_embedding},
    {"products", bench_products}};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> chosen, names;
  for (const auto& [name, section] : sections) names.push_back(name);
  int threads = num_threads();
  CLI::App app("Times kernels and operations beside what bounds them");
  app.add_option("sections", chosen, "What to measure; everything when none is named")
      ->check(CLI::IsMember(names));
  app.add_option("--threads", threads, "CPU threads")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    set_num_threads(threads);
    std::printf("%d thread%s\n", threads, threads == 1 ? "" : "s");
    for (const auto& [name, section] : sections)
      if (chosen.empty() || std::count(chosen.begin(), chosen.end(), name)) section();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return 1;
  }
}
