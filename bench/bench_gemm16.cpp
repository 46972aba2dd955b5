// Times every matrix product of a training step with bf16 matrices, in each way that this processor
// knows, beside the same product in f32; and oneDNN's, where its library is installed.
//
//   bench_gemm16                             the steps of baby, gpt2 and gpt2-256
//   bench_gemm16 --settings baby --threads 1
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>

#include "bench/floor.h"
#include "core/cpu/gemm16.h"
#include "core/threads.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace tapeformer;
using namespace tapeformer::bench;
using namespace tapeformer::cpu;

namespace {

#if defined(__x86_64__)
// As multiply_add_chain: 12 independent sums of dot products of pairs.
[[gnu::noinline, gnu::target("avx512f,avx512bf16")]] float dot_chain(int64_t rounds, int word) {
  constexpr int chains = 12;
  const __m512i a = _mm512_set1_epi32(word);
  __m512 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = _mm512_dpbf16_ps(x[i], (__m512bh)a, (__m512bh)a);
  }
  float sum = 0;
  for (const __m512& vector : x) sum += _mm512_cvtss_f32(vector);
  return sum;
}
#else
float dot_chain(int64_t, int) { return 0; }
#endif

/// bf16 operations per millisecond of all threads together, as peak_flops_per_ms.
double peak_dot_flops_per_ms(int threads) {
  constexpr int64_t rounds = 1 << 18;
  volatile float keep = 0;
  volatile int ones = 0x3f803f80;
  double best = 0;
  for (const auto start = Clock::now(); milliseconds_since(start) < 60;) {
    const double time = milliseconds([&] {
#pragma omp parallel num_threads(threads)
      {
        const float result = dot_chain(rounds, ones);
#pragma omp critical
        keep = result;
      }
    });
    best = std::max(best, 64.0 * 12 * rounds * threads / time);
  }
  return best;
}

// Of oneDNN's C interface; column-major, c in float.
using OneDnnGemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const bf16*, int64_t,
                           const bf16*, int64_t, float, float*, int64_t);
OneDnnGemm find_onednn() {
  for (const char* name : {"libdnnl.so.3", "libdnnl.so.2"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return reinterpret_cast<OneDnnGemm>(dlsym(library, "dnnl_gemm_bf16bf16f32"));
  return nullptr;
}

struct Operands16 {
  Tensor a, b, c;
  explicit Operands16(const Operands& from)
      : a(rounded(from.a)), b(rounded(from.b)), c(Tensor::empty(from.c.shape(), DType::bf16)) {}
  static Tensor rounded(const Tensor& from) {
    const Tensor to = Tensor::empty(from.shape(), DType::bf16);
    for (int64_t i = 0; i < from.numel(); ++i)
      static_cast<bf16*>(to.raw())[i] = bf16(from.data<float>()[i]);
    return to;
  }
};

/// A way to compute a product, and the milliseconds of each.
struct Contender {
  std::string name;
  std::function<void(const Product&)> run;
  double step = 0;  // milliseconds of all products of a step
};

/// f(c, a, b) for each of the product's matrices.
template <class F>
void each_matrix(const Product& p, const Operands16& o, bool parallel, const F& f) {
  parallel_for(p.batch, parallel, [&](int64_t i) {
    f(static_cast<bf16*>(o.c.raw()) + i * p.m * p.n,
      static_cast<const bf16*>(o.a.raw()) + i * p.m * p.k,
      static_cast<const bf16*>(o.b.raw()) + i * p.k * p.n, i);
  });
}

void run_bf16(const Product& p, const Operands16& o, Bf16Way way) {
  const Gemm g{p.m,
               p.n,
               p.k,
               p.transpose_a,
               p.transpose_b,
               p.transpose_a ? p.m : p.k,
               p.transpose_b ? p.k : p.n,
               p.n};
  each_matrix(p, o, true, [&](bf16* c, const bf16* a, const bf16* b, int64_t) {
    p.batch > 1 ? gemm_serial(g, a, b, c, way) : gemm(g, a, b, c, way);
  });
}

// oneDNN has threads of its own. Its results are floats: o.c would be too small.
void run_onednn(const Product& p, const Operands16& o, const Operands& floats, OneDnnGemm f) {
  each_matrix(p, o, p.batch > 1, [&](bf16*, const bf16* a, const bf16* b, int64_t i) {
    f(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1, a,
      p.transpose_a ? p.m : p.k, b, p.transpose_b ? p.k : p.n, 0,
      floats.c.data<float>() + i * p.m * p.n, p.n);
  });
}

/// Medians over rounds in which all take turns.
std::vector<double> times_of(const Product& p, std::vector<Contender>& contenders, int rounds) {
  const auto repeat = static_cast<int>(std::max(1.0, 2e8 / (p.flops() / p.share)));
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = -1; round < rounds; ++round)  // the first does not count
    for (size_t i = 0; i < contenders.size(); ++i) {
      const double time = milliseconds([&] {
        for (int r = 0; r < repeat; ++r) contenders[i].run(p);
      });
      if (round >= 0) times[i].push_back(time / repeat);
    }
  std::vector<double> medians;
  for (size_t i = 0; i < contenders.size(); ++i) {
    medians.push_back(median(times[i]));
    contenders[i].step += p.share * static_cast<double>(p.count) * medians.back();
  }
  return medians;
}

std::vector<Contender> contenders_of(const Operands& floats, const Operands16& halves) {
  constexpr const char* names[] = {"dot", "multiply-add", "convert"};
  std::vector<Contender> result{
      {"f32", [=](const Product& p) { run_product(p, floats, Way::tiling, num_threads()); }}};
  for (const Bf16Way way : {Bf16Way::dot, Bf16Way::multiply_add, Bf16Way::convert})
    if (available(way))
      result.push_back({std::string(names[static_cast<int>(way)]) + (way == bf16_way() ? " *" : ""),
                        [=](const Product& p) { run_bf16(p, halves, way); }});
  if (const OneDnnGemm f = find_onednn())
    result.push_back({"oneDNN", [=](const Product& p) { run_onednn(p, halves, floats, f); }});
  return result;
}

void bench_setting(const Setting& setting, int rounds) {
  const std::vector<Product> products = products_of(setting);
  const Operands floats(products, 1);
  std::vector<Contender> contenders = contenders_of(floats, Operands16(floats));
  std::printf("\n%s: ms, and GFLOP/s; * is the library's choice\n%-17s %6s %6s %6s %5s",
              setting.name.c_str(), "", "m", "n", "k", "batch");
  for (const Contender& contender : contenders) std::printf(" %17s", contender.name.c_str());
  std::printf("\n");
  for (const Product& p : products) {
    std::printf("%-17s %6ld %6ld %6ld %5ld", p.name.c_str(), long(p.m), long(p.n), long(p.k),
                long(p.batch));
    for (const double time : times_of(p, contenders, rounds))
      std::printf(" %9.3f ms %4.0f", time, p.flops() / p.share / time / 1e6);
    std::printf("\n");
    std::fflush(stdout);
  }
  std::printf("%-44s", "all products of a step");
  for (const Contender& contender : contenders) std::printf(" %9.1f ms     ", contender.step);
  std::printf("\n%-44s", "times f32");
  for (const Contender& contender : contenders)
    std::printf(" %9.2f        ", contender.step / contenders[0].step);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> settings = {"baby", "gpt2", "gpt2-256"};
  int threads = 0, rounds = 9;
  CLI::App app("Times the bf16 matrix products of training steps");
  app.option_defaults()->always_capture_default();
  app.add_option("--settings", settings, "Whose steps: tiny, baby, gpt2, gpt2-256");
  app.add_option("--threads", threads, "CPU threads; 0: the cores there are");
  app.add_option("--rounds", rounds, "Rounds over the ways")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    if (threads > 0) set_num_threads(threads);
    prepare_gemm();
    std::printf("%d threads; peak GFLOP/s of f32 multiply-adds %.0f", num_threads(),
                peak_flops_per_ms(num_threads()) / 1e6);
    if (available(Bf16Way::dot))
      std::printf(", of bf16 dot products %.0f", peak_dot_flops_per_ms(num_threads()) / 1e6);
    std::printf("\n");
    for (const std::string& name : settings) bench_setting(find_setting(name), rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gemm16: %s\n", error.what());
    return 1;
  }
}
