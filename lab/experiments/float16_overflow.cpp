// Layer norm with every intermediate rounded to float16: from which size of the input on it fails.
#include <algorithm>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "layers/float16.h"

namespace tapeformer::lab {

namespace {

constexpr int64_t C = 512;

// The smallest half from `power`, a power of 2, to twice that, for which f is true; infinite where
// there is none. Halves lie power / 1024 apart there.
template <class F>
double first_half(double power, const F& f) {
  for (double half = power; half <= 2 * power; half += power / 1024)
    if (f(static_cast<float>(half))) return half;
  return INFINITY;
}

// Whether layer norm of a row of +-a, which has no mean, is silently zero.
bool becomes_zero(float a) {
  const Tensor row = Tensor::empty({1, 1, C});
  for (int64_t i = 0; i < C; ++i) row.data<float>()[i] = i % 2 ? a : -a;
  const Tensor y = find_norm("layernorm-float16")(C)->forward(row, {});
  return std::ranges::all_of(y.to_vector<float>(), [](float value) { return value == 0; });
}

// Shares of the outputs that are off by more than 0.1, or no number; and that are zero.
std::pair<double, double> wrong_and_zero(const std::string& norm, const Tensor& x) {
  const auto y = find_norm(norm + "-float16")(C)->forward(x, {}).to_vector<float>();
  const auto exact = find_norm(norm)(C)->forward(x, {}).to_vector<float>();
  double wrong = 0, zero = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    wrong += !(std::abs(y[i] - exact[i]) <= 0.1f);
    zero += y[i] == 0;
  }
  return {wrong / y.size(), zero / y.size()};
}

Table measure(const Laboratory& lab) {
  register_float16_norms();
  Table table(
      {"norm", "rms", "seed", "wrong", "zero", "square_overflows", "sum_overflows", "epsilon"});
  const double square = first_half(128, [](float a) { return std::isinf(float(f16(a * a))); });
  const double sum = first_half(8, becomes_zero);
  for (const std::string norm : {"layernorm", "rmsnorm"}) {
    for (const double rms : {1, 2, 4, 6, 8, 9, 10, 11, 12, 14, 16, 32, 64, 128, 256, 512, 1000}) {
      for (const uint64_t seed : lab.seeds()) {
        const Tensor x = normal_rows(64, C, rms, seed);
        const auto [wrong, zero] = wrong_and_zero(norm, x);
        table.add({norm, rms, double(seed), wrong, zero, square, sum, double(f16(1e-8f))});
      }
    }
  }
  lab.log("float16-overflow: done");
  return table;
}

Judgement judge(const Table& table) {
  const Table runs = table.where("norm", "layernorm");
  std::vector<double> worst, smallest;
  for (const Cell& seed : runs.distinct("seed")) {
    const Table run = runs.where("seed", seed);
    const auto wrong = run.numbers("wrong"), rms = run.numbers("rms");
    const auto half = std::ranges::find_if(wrong, [](double share) { return share > 0.5; });
    worst.push_back(std::ranges::max(wrong));
    smallest.push_back(half == wrong.end() ? INFINITY : rms[half - wrong.begin()]);
  }
  const auto constant = [&](const char* column) {
    return std::vector<double>{runs.numbers(column).at(0)};
  };
  return {judge_differences(worst, 0.01),
          {{"largest share of wrong outputs in the sweep", worst},
           {"smallest RMS of the sweep with more than half wrong", smallest},
           {"outputs that are zero at RMS 1000", runs.where("rms", 1000.0).numbers("zero")},
           {"smallest number whose square overflows", constant("square_overflows")},
           {"smallest RMS at which the sum of 512 squares overflows", constant("sum_overflows")},
           {"an epsilon of 1e-8 becomes", constant("epsilon")}}};
}

Figure draw(const Table& source) {
  Figure figure{.title = "Norms of 512 features in float16, every intermediate rounded"};
  Table table({"norm", "seed", "power", "wrong", "zero"});
  for (const Cell& norm : source.distinct("norm")) {
    const Table runs = source.where("norm", norm);
    const auto rms = runs.numbers("rms"), seed = runs.numbers("seed"),
               wrong = runs.numbers("wrong"), zero = runs.numbers("zero");
    for (size_t i = 0; i < rms.size(); ++i)
      table.add({norm, seed[i], std::log2(rms[i]), 100 * wrong[i], 100 * zero[i]});
  }
  Panel wrong{.title = "Wrong, or no number", .y_label = "% of the outputs"};
  Panel zero{.title = "Zero",
             .x_label = "RMS of the input, as a power of 2",
             .y_label = "% of the outputs"};
  for (const Cell& norm : table.distinct("norm")) {
    add_lines(wrong, to_text(norm), table.where("norm", norm), "power", "wrong");
    add_lines(zero, to_text(norm), table.where("norm", norm), "power", "zero");
  }
  figure.add(wrong);
  figure.add(zero);
  return figure;
}

}  // namespace

Experiment float16_overflow() {
  return {
      .name = "float16-overflow",
      .claim = "LayerNorm overflows in float16.",
      .source = "a common warning about mixed precision",
      .literature =
          "True. The largest float16 is 65,504, so a square overflows from 256 on and the sum of "
          "512 squares from an RMS of sqrt(65504 / 512) = 11.3 on; the inverse root of an "
          "infinite variance is zero, so the failure is silent (follows from IEEE 754).",
      .expected = Verdict::holds,
      .method =
          "Layer norm and RMS norm of 512 features with every intermediate rounded to float16, on "
          "64 normal rows of RMS 1 to 1000 for each seed, against the norm in float32. An output "
          "is wrong when off by more than 0.1, or no number. Thresholds: the smallest float16 for "
          "which the square is infinite, and the smallest a for which layer norm of a row of +-a "
          "is zero.",
      .rule =
          "Holds when in every seed more than 1 % of layer norm's outputs are wrong somewhere in "
          "the sweep; does not hold when in every seed it is nowhere more than 1 %.",
      .data = Data::random,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
