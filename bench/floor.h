// The floor of a training step: the time of its matrix products alone, each in the fastest way
// that is known here, and of one pass of memory traffic such as AdamW's. What a step takes beyond
// it, better code could save.
#pragma once

#include <array>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/machine.h"
#include "bench/settings.h"
#include "core/cpu/gemm.h"
#include "core/kernels.h"

namespace tapeformer::bench {

/// How a product is computed: by OpenBLAS as one call on one thread or on all, or by our tiling.
enum class Way { one_thread, all_threads, tiling };
inline constexpr std::array<const char*, 3> way_names = {"one thread", "all threads", "tiling"};

/// Memory for one product at a time, and for AdamW's streams. Copies share it.
struct Operands {
  Tensor a, b, c, p, g, m, v;

  Operands(const std::vector<Product>& products, int64_t parameters) {
    int64_t size_a = 1, size_b = 1, size_c = 1;
    for (const Product& product : products) {
      size_a = std::max(size_a, product.batch * product.m * product.k);
      size_b = std::max(size_b, product.batch * product.k * product.n);
      size_c = std::max(size_c, product.batch * product.m * product.n);
    }
    const auto random = [](int64_t n) {
      const Tensor tensor = Tensor::empty({n});
      kernels::fill_uniform(tensor, -1, 1, RandomKey{1});
      return tensor;
    };
    a = random(size_a);
    b = random(size_b);
    c = random(size_c);
    p = random(parameters);
    g = random(parameters);
    m = random(parameters);
    v = random(parameters);
  }
};

inline void run_product(const Product& product, const Operands& operands, Way way, int threads) {
  using namespace tapeformer::cpu;
  const Gemm gemm_{product.m,
                   product.n,
                   product.k,
                   product.transpose_a,
                   product.transpose_b,
                   product.transpose_a ? product.m : product.k,
                   product.transpose_b ? product.k : product.n,
                   product.n};
  const auto run_one = [&](int64_t i) {
    const float* a = operands.a.data<float>() + i * product.m * product.k;
    const float* b = operands.b.data<float>() + i * product.k * product.n;
    float* c = operands.c.data<float>() + i * product.m * product.n;
    if (way == Way::all_threads)
      gemm_whole(gemm_, a, b, c, threads);
    else if (way == Way::one_thread || product.batch > 1)
      gemm_serial(gemm_, a, b, c);
    else
      gemm(gemm_, a, b, c);
  };
  parallel_for(product.batch, way == Way::tiling, run_one);
}

/// The floor of one setting on one number of threads, which must be the library's when round()
/// runs.
class Floor {
 public:
  Floor(std::vector<Product> products, Operands operands, int threads)
      : products_(std::move(products)),
        operands_(std::move(operands)),
        threads_(threads),
        times_(products_.size()) {}

  /// Measures everything once, warm. The results are medians over rounds.
  void round() {
    round_of_products();
    const Operands& o = operands_;
    traffic_.push_back(warm_milliseconds(10, [&] {
      adamw_traffic(o.p.data<float>(), o.g.data<float>(), o.m.data<float>(), o.v.data<float>(),
                    o.p.numel(), threads_);
    }));
    peak_ = std::max(peak_, peak_flops_per_ms(threads_));
  }
  void round_of_products() {
    for (const Way way : {Way::one_thread, Way::tiling, Way::all_threads}) {
      if (way == Way::all_threads && threads_ == 1) continue;
      for (size_t i = 0; i < products_.size(); ++i)
        times_[i][static_cast<int>(way)].push_back(
            warm_milliseconds(10, [&] { run_product(products_[i], operands_, way, threads_); }));
    }
    // OpenBLAS's own threads keep a core busy for a while after a product.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  /// Milliseconds of one product computed in a way, the causal half of it counted alone; 0 when not
  /// measured.
  double product_ms(size_t i, Way way) const {
    const auto& times = times_[i][static_cast<int>(way)];
    return times.empty() ? 0 : products_[i].share * median(times);
  }
  Way fastest(size_t i) const {
    Way best = Way::one_thread;
    for (const Way way : {Way::all_threads, Way::tiling})
      if (const double time = product_ms(i, way); time > 0 && time < product_ms(i, best))
        best = way;
    return best;
  }
  double products_ms() const {
    double sum = 0;
    for (size_t i = 0; i < products_.size(); ++i)
      sum += static_cast<double>(products_[i].count) * product_ms(i, fastest(i));
    return sum;
  }
  double traffic_ms() const { return median(traffic_); }
  double ms() const { return products_ms() + traffic_ms(); }
  double flops() const {
    double sum = 0;
    for (const Product& product : products_)
      sum += static_cast<double>(product.count) * product.flops();
    return sum;
  }
  void print() const {
    std::printf("%-17s %6s %6s %6s %6s %6s %11s %11s %9s  %-11s %8s %8s\n", "ms per product", "m",
                "n", "k", "batch", "count", "one thread", "all threads", "tiling", "fastest",
                "GFLOP/s", "of step");
    for (size_t i = 0; i < products_.size(); ++i) {
      const Product& p = products_[i];
      const double time = product_ms(i, fastest(i));
      std::printf("%-17s %6ld %6ld %6ld %6ld %6ld %11.3f %11.3f %9.3f  %-11s %8.1f %8.2f\n",
                  p.name.c_str(), p.m, p.n, p.k, p.batch, p.count, product_ms(i, Way::one_thread),
                  product_ms(i, Way::all_threads), product_ms(i, Way::tiling),
                  way_names[static_cast<int>(fastest(i))], p.flops() / time / 1e6,
                  static_cast<double>(p.count) * time);
    }
  }
  double peak_gflops() const { return peak_ / 1e6; }
  double bandwidth() const { return 28e-6 * operands_.p.numel() / traffic_ms(); }  // GB/s

 private:
  std::vector<Product> products_;
  Operands operands_;
  int threads_;
  std::vector<std::array<std::vector<double>, 3>> times_;  // by product, way and round
  std::vector<double> traffic_;
  double peak_ = 0;
};

}  // namespace tapeformer::bench
