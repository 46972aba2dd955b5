// Times whole training steps of a GPT by phase, beside the floor: what its matrix products and the
// optimizer's memory traffic alone would take on this machine.
//
//   bench_train --setting baby               on 1, 2, 4 ... threads up to the cores there are
//   bench_train --setting gpt2 --threads 2 --verbose --json gpt2.json
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/floor.h"
#include "bench/training.h"
#include "core/threads.h"
#include "train/number_option.h"

using namespace tapeformer;
using namespace tapeformer::bench;

namespace {

struct Options {
  std::string setting = "tiny", dtype = "f32", json;
  int rounds = 3, threads = 0;
  double seconds = 1.5;
  bool all_threads = false, verbose = false;
};

/// What was measured on one number of threads.
struct Measurement {
  int threads = 0;
  std::vector<double> forward, backward, optimizer, step;
  int64_t page_faults = 0, system_requests = 0;
  std::unique_ptr<Floor> floor;

  /// Steps for `seconds`, three at least, after one that finds out about this number of threads.
  void run_steps(Training& training, double seconds) {
    set_num_threads(threads);
    training.step();
    const int64_t faults_before = bench::page_faults();
    const size_t requests_before = memory_stats().system_requests;
    const auto start = Clock::now();
    for (int i = 0; i < 3 || milliseconds_since(start) < 1000 * seconds; ++i) {
      const Training::Times times = training.step();
      forward.push_back(times.forward);
      backward.push_back(times.backward);
      optimizer.push_back(times.optimizer);
      step.push_back(times.step);
    }
    page_faults += bench::page_faults() - faults_before;
    system_requests += memory_stats().system_requests - requests_before;
  }

  double step_ms() const { return median(step); }
  double ratio() const { return step_ms() / floor->ms(); }
  double gflops() const { return floor->flops() / step_ms() / 1e6; }
  double peak_share() const { return gflops() / floor->peak_gflops(); }
  double per_step(int64_t count) const {
    return static_cast<double>(count) / static_cast<double>(step.size());
  }
};

struct Memory {
  MemoryStats tensors;
  Resident resident;
};

std::vector<Measurement> measure(const Setting& setting, const Options& options, Memory& memory) {
  std::set<int> counts = {num_threads()};
  if (options.threads == 0 || options.all_threads)
    for (int threads = 1; threads <= available_cores(); threads *= 2) counts.insert(threads);
  std::vector<Measurement> measurements;
  for (const int threads : counts) measurements.emplace_back().threads = threads;

  Training training(setting, "layernorm", find_dtype(options.dtype));
  for (int i = 0; i < 3; ++i) training.step();
  for (int round = 0; round < options.rounds; ++round) {
    for (Measurement& m : measurements) m.run_steps(training, options.seconds);
    if (round == 0) {  // before the floor takes memory of its own
      memory = {memory_stats(), resident()};
      const Operands operands(products_of(setting), training.parameters());
      for (Measurement& m : measurements)
        m.floor = std::make_unique<Floor>(products_of(setting), operands, m.threads);
    }
    for (Measurement& m : measurements) {
      set_num_threads(m.threads);
      m.floor->round();
    }
  }
  return measurements;
}

// ---------------------------------------------------------------- what is printed

void print_steps(const Setting& s, const std::string& dtype,
                 const std::vector<Measurement>& measurements) {
  std::printf("%s: %ld layers, %ld heads, %ld channels, context %ld, batch %ld, %ld symbols, %s\n",
              s.name.c_str(), s.layers, s.heads, s.channels, s.context, s.batch, s.vocabulary,
              dtype.c_str());
  std::printf("%7s %9s %9s %9s %9s %9s %9s %6s %9s %8s\n", "threads", "tokens/s", "forward",
              "backward", "optimizer", "step ms", "floor ms", "ratio", "GFLOP/s", "of peak");
  for (const Measurement& m : measurements)
    std::printf("%7d %9.0f %9.2f %9.2f %9.2f %9.2f %9.2f %6.2f %9.1f %7.0f%%\n", m.threads,
                1000 * s.tokens() / m.step_ms(), median(m.forward), median(m.backward),
                median(m.optimizer), m.step_ms(), m.floor->ms(), m.ratio(), m.gflops(),
                100 * m.peak_share());
}

void print_machine(const std::vector<Measurement>& measurements, const Memory& memory) {
  const auto gigabytes = [](double bytes) { return bytes / 1e9; };
  std::printf("memory: tensors %.3f GB, at most %.3f GB; resident %.3f GB, at most %.3f GB\n",
              gigabytes(memory.tensors.live_bytes), gigabytes(memory.tensors.peak_bytes),
              gigabytes(memory.resident.now), gigabytes(memory.resident.peak));
  for (const Measurement& m : measurements)
    std::printf(
        "%d thread%s: peak %.0f GFLOP/s, AdamW's traffic at %.1f GB/s; a step asks the "
        "system for memory %.2f times and touches %.1f fresh pages\n",
        m.threads, m.threads == 1 ? "" : "s", m.floor->peak_gflops(), m.floor->bandwidth(),
        m.per_step(m.system_requests), m.per_step(m.page_faults));
}

void print_floor(const Floor& floor, int threads) {
  std::printf("\nfloor on %d thread%s; of causal products, the half that is needed\n", threads,
              threads == 1 ? "" : "s");
  floor.print();
  std::printf("products %.2f ms, AdamW's traffic %.2f ms\n", floor.products_ms(),
              floor.traffic_ms());
}

void write_json(std::ostream& out, const Setting& setting, const std::string& dtype,
                const Measurement& m, const Memory& memory) {
  const nlohmann::json json = {{"setting", setting.name},
                               {"dtype", dtype},
                               {"threads", m.threads},
                               {"tokens_per_second", 1000 * setting.tokens() / m.step_ms()},
                               {"forward_ms", median(m.forward)},
                               {"backward_ms", median(m.backward)},
                               {"optimizer_ms", median(m.optimizer)},
                               {"step_ms", m.step_ms()},
                               {"floor_ms", m.floor->ms()},
                               {"ratio", m.ratio()},
                               {"gflops", m.gflops()},
                               {"peak_share", m.peak_share()},
                               {"peak_bytes", memory.tensors.peak_bytes},
                               {"resident_bytes", memory.resident.peak},
                               {"page_faults_per_step", m.per_step(m.page_faults)},
                               {"system_requests_per_step", m.per_step(m.system_requests)}};
  out << json.dump(2) << '\n';
}

void run(const Options& options) {
  const Setting setting = find_setting(options.setting);
  find_dtype(options.dtype);
  check(options.rounds >= 1 && options.rounds <= 1000, "--rounds must lie in 1 ... 1000, got ",
        options.rounds);
  check(options.seconds >= 0 && options.seconds <= 3600, "--seconds must lie in 0 ... 3600, got ",
        options.seconds);
  check(options.threads >= 0 && options.threads <= 1024, "--threads must lie in 0 ... 1024, got ",
        options.threads);
  if (options.threads > 0) set_num_threads(options.threads);
  const int threads = num_threads();
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"})
    if (const char* value = std::getenv(name))
      std::printf("note: %s=%s changes the speed of the products; unset it\n", name, value);

  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  check(!json.fail(), "cannot write ", options.json);
  Memory memory;
  const std::vector<Measurement> measurements = measure(setting, options, memory);
  print_steps(setting, options.dtype, measurements);
  print_machine(measurements, memory);
  for (const Measurement& m : measurements) {
    if (options.verbose) print_floor(*m.floor, m.threads);
    if (m.threads == threads && json.is_open()) write_json(json, setting, options.dtype, m, memory);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of a GPT beside the floor of their matrix products");
  app.option_defaults()->always_capture_default();
  app.add_option("--setting", options.setting, "tiny, baby, gpt2 or gpt2-256");
  app.add_option("--dtype", options.dtype,
                 "Of the model: f32, f64, bf16 or f16; the floor is f32's");
  app.add_option("--json", options.json, "Also write the medians to this file");
  app.add_option("--rounds", options.rounds, "Rounds of steps and floor, alternating")
      ->check(number_objection<int>);
  app.add_option("--seconds", options.seconds, "How long the steps of a round take, at least")
      ->check(number_objection<double>);
  app.add_option("--threads", options.threads, "On this many threads alone; 0: 1, 2, 4 ... cores")
      ->check(number_objection<int>);
  app.add_flag("--all-threads", options.all_threads, "With --threads: on 1, 2, 4 ... as well");
  app.add_flag("--verbose", options.verbose, "Also print the floor, product by product");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train: %s\n", error.what());
    return 1;
  }
}
