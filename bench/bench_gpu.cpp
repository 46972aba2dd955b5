// Trains a GPT-2 of 124M parameters on a GPU and says how far from the machine's limits it is:
// tokens per second, the share of what its matrix products reach alone, and the time of every
// operation, and then of every kernel alone, beside its floor, which is what its bytes or its
// operations take at the least.
//
//   bench_gpu                                   64 x 1024 tokens in a step, bf16
//   bench_gpu --batch 16 --seconds 5
//   bench_gpu --device cpu --setting tiny --batch 0 --dtype f32    tries the program itself
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/gpu_kernels.h"
#include "bench/training.h"
#include "train/number_option.h"

using namespace tapeformer;
using namespace tapeformer::bench;

namespace {

/// GPT-2 with 124 million parameters. The vocabulary is rounded up from 50257, so that rows of
/// logits begin at multiples of 16 bytes.
const Setting gpt2{"gpt2-1024", 12, 12, 768, 1024, 64, 50304, true};

struct Options {
  std::string setting = gpt2.name, dtype = "bf16", device = "cuda", json;
  int64_t batch = 64;
  double seconds = 20;
};

/// What the machine does at best, measured here: its floors are made of these.
struct Limits {
  double flops_per_ms = 0, bytes_per_ms = 0;

  bool by_flops(double bytes, double flops) const {
    return flops / flops_per_ms > bytes / bytes_per_ms;
  }
  /// Milliseconds that both take at least.
  double floor(double bytes, double flops) const {
    return std::max(bytes / bytes_per_ms, flops / flops_per_ms);
  }
};

Limits measure_limits(Device device, DType dtype) {
  const int64_t n = device == Device::cpu ? 512 : 8192;
  const auto random = [&](const Shape& shape, DType dtype) {
    const Tensor x = Tensor::empty(shape, dtype, device);
    kernels::fill_uniform(x, -1, 1, RandomKey{1});
    return x;
  };
  Limits limits;
  {
    const Tensor a = random({n, n}, dtype), b = random({n, n}, dtype), c = a.empty_like();
    const double time =
        least_milliseconds(device, [&] { kernels::matmul(a, false, b, true, 1, Destination{c}); });
    limits.flops_per_ms = 2.0 * n * n * n / time;
  }
  const Tensor from = random({n * n}, DType::f32), to = from.empty_like();
  const double time = least_milliseconds(device, [&] { kernels::copy(from, to); });
  limits.bytes_per_ms = 2.0 * static_cast<double>(from.bytes()) / time;
  return limits;
}

/// Operations of a step that belong to products of this operation of the tape.
double flops_of(const Setting& setting, const std::string& operation) {
  double flops = 0;
  for (const Product& product : products_of(setting)) {
    const bool attention = product.share < 1, logits = product.name.starts_with("logits");
    const char* of = attention ? "attention" : logits ? "linear_cross_entropy" : "linear";
    if (operation == of) flops += static_cast<double>(product.count) * product.flops();
  }
  return flops;
}

double flops_of(const Setting& setting) {
  double flops = 0;
  for (const Product& product : products_of(setting))
    flops += static_cast<double>(product.count) * product.flops();
  return flops;
}

void print_line(const std::string& name, double calls, double ms, double step_ms, double bytes,
                double flops, const Limits& limits) {
  const double floor = limits.floor(bytes, flops);
  std::printf("%-22s %6.0f %9.3f %6.1f%% %9.3f %7.2f  %s\n", name.c_str(), calls, ms,
              100 * ms / step_ms, floor, floor > 0 ? ms / floor : 0,
              limits.by_flops(bytes, flops) ? "operations" : "bytes");
}

/// Every operation is waited for, so these steps are slower than those that were timed.
void print_operations(Training& training, const Setting& setting, Device device, DType dtype,
                      const Limits& limits) {
  OperationProfile profile(device);
  for (int i = 0; i < 3; ++i) training.profile_step(profile);
  std::printf("\n%-22s %6s %9s %7s %9s %7s  %s\n", "operation", "calls", "ms", "of step",
              "floor ms", "floors", "bound by");
  double rest = profile.step_ms();
  for (const OperationCost& cost : profile.costs()) {
    print_line(cost.operation, cost.calls, cost.ms(), profile.step_ms(),
               cost.forward_bytes + cost.backward_bytes, flops_of(setting, cost.operation), limits);
    rest -= cost.ms();
  }
  // AdamW reads values, gradients and two moments and writes all but the gradients; the norm reads
  // the gradients once more; a 16-bit model is written too.
  const auto count = static_cast<double>(training.parameters());
  double update = 0;
  for (const ProfileEvent& event : profile.events())
    if (event.kind == ProfileEvent::Kind::part)
      update += event.duration / 1000 / static_cast<double>(profile.steps());
  print_line("clipping and AdamW", 1, update, profile.step_ms(),
             count * (32 + (is_16bit(dtype) ? 2 : 0)), 0, limits);
  std::printf("%-22s %6s %9.3f %6.1f%%\n", "the rest", "", rest - update,
              100 * (rest - update) / profile.step_ms());
}

/// Beside a copy or, where operations are the limit, a large product: 100 % is what those reach.
void print_kernels(const Setting& setting, int64_t parameters, DType dtype, Device device,
                   const Limits& limits) {
  const KernelTimes kernels(setting, parameters, dtype, device);
  std::printf("\n%-28s %9s %9s %7s  %s\n", "kernel alone", "ms", "floor ms", "of it", "moves");
  for (const KernelTime& kernel : kernels.times()) {
    const double floor = limits.floor(kernel.bytes, kernel.flops);
    std::printf("%-28s %9.3f %9.3f %6.1f%%  ", kernel.name.c_str(), kernel.ms, floor,
                100 * floor / kernel.ms);
    if (limits.by_flops(kernel.bytes, kernel.flops))
      std::printf("%.4g TFLOP/s\n", 1e-9 * kernel.flops / kernel.ms);
    else
      std::printf("%.0f GB/s\n", 1e-6 * kernel.bytes / kernel.ms);
  }
}

/// Milliseconds of each step, for so long and at least five. As in a run, a step's result is read
/// when the next one is under way: so this is the time from result to result.
std::vector<double> time_steps(Training& training, double seconds) {
  constexpr size_t warm_up = 3, fewest = 5;
  std::vector<double> steps;
  std::optional<TrainingStep> under_way(training.start_step());
  const auto start = Clock::now();
  while (steps.size() < warm_up + fewest || milliseconds_since(start) < 1000 * seconds)
    steps.push_back(milliseconds([&] {
      TrainingStep next = training.start_step();
      under_way->result();
      under_way.emplace(std::move(next));
    }));
  under_way->result();
  steps.erase(steps.begin(), steps.begin() + warm_up);
  return steps;
}

void run(const Options& options) {
  Setting setting = options.setting == gpt2.name ? gpt2 : find_setting(options.setting);
  const DType dtype = find_dtype(options.dtype);
  const Device device = find_device(options.device);
  if (options.batch > 0) setting.batch = options.batch;
  check(options.batch >= 0 && options.batch <= 4096, "--batch must lie in 0 ... 4096, got ",
        options.batch);
  check(options.seconds >= 0 && options.seconds <= 3600, "--seconds must lie in 0 ... 3600, got ",
        options.seconds);
  const Limits limits = measure_limits(device, dtype);
  std::optional<Training> trained(std::in_place, setting, "layernorm", dtype, device);
  Training& training = *trained;
  const std::vector<double> steps = time_steps(training, options.seconds);
  const double step = median(steps), flops = flops_of(setting);
  const double share = flops / step / limits.flops_per_ms;
  std::printf(
      "%s on %s in %s: %ld layers, %ld channels, %.1f million parameters; a step of %ld x "
      "%ld tokens\n",
      setting.name.c_str(), options.device.c_str(), options.dtype.c_str(), setting.layers,
      setting.channels, 1e-6 * static_cast<double>(training.parameters()), setting.batch,
      setting.context);
  std::printf("limits: products %.4g TFLOP/s, copies %.0f GB/s\n", 1e-9 * limits.flops_per_ms,
              1e-6 * limits.bytes_per_ms);
  const double tokens = 1000 * static_cast<double>(setting.tokens()) / step;
  std::printf(
      "step %.2f ms (median of %zu), %.0f tokens/s, %.4g TFLOP/s, %.1f%% of the products' "
      "limit; at most %.2f GB of tensors\n",
      step, steps.size(), tokens, 1e-9 * flops / step, 100 * share,
      1e-9 * static_cast<double>(memory_stats(device).peak_bytes));
  print_operations(training, setting, device, dtype, limits);
  const int64_t parameters = training.parameters();
  trained.reset();  // so that its memory is free for the kernels
  print_kernels(setting, parameters, dtype, device, limits);
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << nlohmann::json{{"setting", setting.name},
                         {"dtype", options.dtype},
                         {"batch", setting.batch},
                         {"step_ms", step},
                         {"tokens_per_second", tokens},
                         {"peak_share", share},
                         {"gemm_tflops", 1e-9 * limits.flops_per_ms},
                         {"copy_gb_per_second", 1e-6 * limits.bytes_per_ms}}
              .dump(2)
       << '\n';
  check(file.good(), "cannot write ", options.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times the training of a GPT on a GPU beside the machine's limits");
  app.option_defaults()->always_capture_default();
  app.add_option("--setting", options.setting, "gpt2-1024, or a setting of bench_train");
  app.add_option("--batch", options.batch, "Rows of a step; 0: the setting's")
      ->check(number_objection<int64_t>);
  app.add_option("--dtype", options.dtype, "Of the model: f32, bf16 or f16");
  app.add_option("--device", options.device, "cuda, cuda:<index>, or cpu to try the program");
  app.add_option("--seconds", options.seconds, "How long steps are timed, at least")
      ->check(number_objection<double>);
  app.add_option("--json", options.json, "Also write the result to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return 1;
  }
}
