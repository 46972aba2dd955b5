// Times layer norm and RMS norm beside a plain copy of the same bytes, and what RMS norm saves:
// of the norm itself, out of cache and in it, and of a whole training step.
//
//   bench_norms                              on tensors of 256 MB, four of them, and on small ones
//   bench_norms --megabytes 1024 --threads 1
//   bench_norms --only steps --settings gpt2 --json steps.json
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/compare.h"
#include "bench/training.h"
#include "core/cpu/parallel.h"
#include "core/threads.h"

using namespace tapeformer;
using namespace tapeformer::bench;
using nlohmann::json;

namespace {

struct Options {
  std::string only, json_file;
  std::vector<std::string> settings = {"tiny", "baby", "gpt2"};
  int threads = 0, rounds = 11;
  int64_t megabytes = 256;
  double seconds = 8;
};

// ---------------------------------------------------------------- the norms alone

/// y = factor x with ordinary vector stores. A copy that the compiler recognises becomes a call of
/// memcpy, whose instructions may write without reading the line first; no kernel can do that.
void plain_copy(const Tensor& x, const Tensor& y, int64_t n) {
  static volatile float one = 1;
  const float *from = x.data<float>(), factor = one;
  float* to = y.data<float>();
  cpu::parallel_pieces(n, 8192, 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = factor * from[i];
  });
}

/// The four tensors that every kernel works on, of `floats` each.
struct Memory {
  Tensor x, residual, sum, y;
  explicit Memory(int64_t floats)
      : x(random_tensor({floats})),
        residual(random_tensor({floats})),
        sum(random_tensor({floats})),
        y(random_tensor({floats})) {}
};

/// What is timed of each norm, and its traffic in copies: forward reads x and writes y; with the
/// residual it reads two and writes two; backward reads dy and s and writes ds; with the gradient
/// that came beside the norm it reads three.
constexpr int forms = 4;
constexpr std::array<const char*, forms> form_names = {"forward", "residual + x", "backward",
                                                       "backward + dsum"};
constexpr std::array<double, forms> form_copies = {1, 2, 1.5, 2};

/// Rows of C channels in this memory.
class Norms {
 public:
  Norms(const Memory& memory, int64_t C)
      : N_(memory.x.numel() / C),
        C_(C),
        x_(rows(memory.x)),
        residual_(rows(memory.residual)),
        sum_(rows(memory.sum)),
        y_(rows(memory.y)),
        gamma_(random_tensor({C})),
        beta_(random_tensor({C})),
        mean_(Tensor::full({N_}, 0)),
        rstd_(Tensor::full({N_}, 1)),
        dgamma_{gamma_.empty_like()},
        dbeta_{beta_.empty_like()} {}

  int64_t numel() const { return N_ * C_; }
  void copy() const { plain_copy(x_, y_, numel()); }

  void layer(int form) const {
    namespace k = kernels;
    const Tensor none;
    if (form == 0) k::layer_norm_forward(x_, none, 1, gamma_, beta_, 1e-5, none, y_, mean_, rstd_);
    if (form == 1)
      k::layer_norm_forward(x_, residual_, 1, gamma_, beta_, 1e-5, sum_, y_, mean_, rstd_);
    if (form >= 2)
      k::layer_norm_backward(y_, x_, gamma_, mean_, rstd_, false, form == 3 ? residual_ : none,
                             Destination{sum_}, dgamma_, dbeta_);
  }
  void rms(int form) const {
    namespace k = kernels;
    const Tensor none;
    if (form == 0) k::rms_norm_forward(x_, none, 1, gamma_, 1e-5, none, y_, rstd_);
    if (form == 1) k::rms_norm_forward(x_, residual_, 1, gamma_, 1e-5, sum_, y_, rstd_);
    if (form >= 2)
      k::rms_norm_backward(y_, x_, gamma_, rstd_, form == 3 ? residual_ : none, Destination{sum_},
                           dgamma_);
  }

 private:
  Tensor rows(const Tensor& all) const { return reshape(slice(all, 0, 0, N_ * C_), {N_, C_}); }

  int64_t N_, C_;
  Tensor x_, residual_, sum_, y_, gamma_, beta_, mean_, rstd_;
  Destination dgamma_, dbeta_;
};

/// Medians over rounds in which the copy and every kernel take turns.
struct NormTimes {
  std::array<std::vector<double>, forms> layer, rms, layer_copies, rms_copies, saving;
  std::vector<double> copy;
};

NormTimes measure(const Norms& norms, int rounds) {
  // Small tensors several times in a row: a clock is not read for a few microseconds alone.
  const int64_t repeat = std::max<int64_t>(1, (1 << 21) / norms.numel());
  const auto time = [&](auto&& f) {
    return milliseconds([&] {
             for (int64_t i = 0; i < repeat; ++i) f();
           }) /
           static_cast<double>(repeat);
  };
  NormTimes t;
  for (int round = -1; round < rounds; ++round) {  // the first does not count
    const double copy = time([&] { norms.copy(); });
    if (round >= 0) t.copy.push_back(copy);
    for (int form = 0; form < forms; ++form) {
      const double layer = time([&] { norms.layer(form); });
      const double rms = time([&] { norms.rms(form); });
      if (round < 0) continue;
      t.layer[form].push_back(layer);
      t.rms[form].push_back(rms);
      t.layer_copies[form].push_back(layer / (form_copies[form] * copy));
      t.rms_copies[form].push_back(rms / (form_copies[form] * copy));
      t.saving[form].push_back(100 * (1 - rms / layer));
    }
  }
  return t;
}

json print_norm(const char* label, const std::array<std::vector<double>, forms>& times,
                const std::array<std::vector<double>, forms>& copies) {
  json result;
  std::printf("%-16s", label);
  for (int form = 0; form < forms; ++form) {
    const double ms = median(times[form]), ratio = median(copies[form]);
    std::printf(" %9.3f ms %5.2f", ms, ratio);
    result[form_names[form]] = {{"ms", ms}, {"copies", ratio}};
  }
  std::printf("\n");
  return result;
}

json bench_norms(const char* where, int64_t floats, int rounds) {
  std::printf("\nnorms, %s: ms, and times a copy of the same bytes\n%-16s", where, "");
  for (const char* name : form_names) std::printf(" %18s", name);
  std::printf("\n");
  json results = json::array();
  const Memory memory(floats);
  for (const int64_t C : {128, 256, 384, 512, 768, 1024, 2048, 4096}) {
    const Norms norms(memory, C);
    const NormTimes t = measure(norms, rounds);
    const double bandwidth = 8e-6 * static_cast<double>(norms.numel()) / median(t.copy);
    json result = {{"where", where}, {"channels", C}, {"copy_gb_per_second", bandwidth}};
    std::printf("%-16s %9.3f ms, %.1f GB/s\n", (std::to_string(C) + ": copy").c_str(),
                median(t.copy), bandwidth);
    result["layernorm"] = print_norm("      LayerNorm", t.layer, t.layer_copies);
    result["rmsnorm"] = print_norm("      RMSNorm", t.rms, t.rms_copies);
    std::printf("%-16s", "      it saves");
    for (int form = 0; form < forms; ++form) {
      const double percent = median(t.saving[form]);
      std::printf(" %16.0f %%", percent);
      result["saving_percent"][form_names[form]] = percent;
    }
    std::printf("\n");
    results.push_back(result);
  }
  return results;
}

// ---------------------------------------------------------------- a training step

json bench_step(const Setting& setting, double seconds) {
  Training layer(setting, "layernorm"), rms(setting, "rmsnorm");
  for (int i = 0; i < 2; ++i) layer.step(), rms.step();
  std::vector<double> layer_ms, rms_ms, saving;
  const auto start = Clock::now();
  while (layer_ms.size() < 5 || milliseconds_since(start) < 1000 * seconds) {
    layer_ms.push_back(layer.step().step);
    rms_ms.push_back(rms.step().step);
    saving.push_back(100 * (1 - rms_ms.back() / layer_ms.back()));
  }
  std::printf("%-10s %11.2f ms %11.2f ms %8.1f %%  (%zu steps of each)\n", setting.name.c_str(),
              median(layer_ms), median(rms_ms), median(saving), saving.size());
  return {{"setting", setting.name},
          {"layernorm_ms", median(layer_ms)},
          {"rmsnorm_ms", median(rms_ms)},
          {"saving_percent", median(saving)},
          {"steps", saving.size()}};
}

json bench_steps(const Options& options) {
  std::printf("\ntraining steps, alternating\n%-10s %14s %14s %10s\n", "setting", "layernorm",
              "rmsnorm", "it saves");
  json results = json::array();
  for (const std::string& name : options.settings)
    results.push_back(bench_step(find_setting(name), options.seconds));
  return results;
}

void run(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  std::printf("%d thread%s\n", num_threads(), num_threads() == 1 ? "" : "s");
  std::ofstream file;
  if (!options.json_file.empty()) file.open(options.json_file);
  check(!file.fail(), "cannot write ", options.json_file);

  json results = {{"threads", num_threads()}};
  if (options.only != "steps") {
    const auto floats = options.megabytes * (int64_t{1} << 18);
    results["norms"] = bench_norms("out of cache", floats, options.rounds);
    // The four tensors together take 1 MB: less than the cache of a core.
    const json cached = bench_norms("in cache", int64_t{1} << 16, 5 * options.rounds);
    results["norms"].insert(results["norms"].end(), cached.begin(), cached.end());
  }
  if (options.only != "norms") results["steps"] = bench_steps(options);
  if (file.is_open()) file << results.dump(2) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times layer norm and RMS norm alone and within training steps");
  app.option_defaults()->always_capture_default();
  app.add_option("--only", options.only, "norms or steps; otherwise both")
      ->check(CLI::IsMember({"norms", "steps"}));
  app.add_option("--megabytes", options.megabytes,
                 "Of each of the four tensors out of cache: more than the machine's caches hold")
      ->check(CLI::PositiveNumber);
  app.add_option("--settings", options.settings, "Whose steps to time: tiny, baby, gpt2, gpt2-256");
  app.add_option("--rounds", options.rounds, "Rounds over the norms")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "How long the steps of a setting take, at least");
  app.add_option("--threads", options.threads, "CPU threads; 0: the cores there are");
  app.add_option("--json", options.json_file, "Also write the numbers to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_norms: %s\n", error.what());
    return 1;
  }
}
