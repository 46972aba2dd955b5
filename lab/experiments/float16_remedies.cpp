// Two remedies for layer norm in float16 side by side: clamping the input, and float32 inside.
#include <algorithm>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "layers/float16.h"

namespace tapeformer::lab {

namespace {

constexpr int64_t C = 512;

// RMS of the output's error. The exact output has an RMS of 1.
double error_of(const std::string& norm, const Tensor& x) {
  const auto y = find_norm(norm)(C)->forward(x, {}).to_vector<float>();
  const auto exact = find_norm("layernorm")(C)->forward(x, {}).to_vector<float>();
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += std::pow(double(y[i]) - exact[i], 2) / y.size();
  return std::sqrt(sum);
}

Table measure(const Laboratory& lab) {
  register_float16_norms();
  Table table({"norm", "rms", "seed", "error"});
  for (const std::string& norm : float16_norms_of("layernorm")) {
    for (const double rms : {1, 2, 3, 4, 6, 8, 10, 12, 16, 32, 64, 128, 256, 512, 1000}) {
      for (const uint64_t seed : lab.seeds()) {
        const Tensor x = normal_rows(64, C, rms, seed);
        table.add({norm, rms, double(seed), error_of(norm, x)});
      }
    }
    lab.log("float16-remedies: " + norm);
  }
  return table;
}

// One for each seed: the largest error of the sweep; infinite where one is no number.
std::vector<double> worst(const Table& table, const char* norm) {
  std::vector<double> result;
  for (const Cell& seed : table.distinct("seed")) {
    double largest = 0;
    for (const double error : table.where("norm", norm).where("seed", seed).numbers("error"))
      largest = std::isnan(error) ? INFINITY : std::max(largest, error);
    result.push_back(largest);
  }
  return result;
}

Judgement judge(const Table& table) {
  const auto clamp = worst(table, "layernorm-float16-clamp"),
             wide = worst(table, "layernorm-float16-f32stats");
  const auto worse = seed_by_seed(clamp, wide, [](double a, double b) { return std::max(a, b); });
  const Verdict fails = judge_differences(worse, 0.02);
  const Verdict verdict = fails == Verdict::holds           ? Verdict::does_not_hold
                          : fails == Verdict::does_not_hold ? Verdict::holds
                                                            : Verdict::not_decidable;
  const auto at = [&](const char* norm, double rms) {
    return table.where("norm", norm).where("rms", rms).numbers("error");
  };
  return {verdict,
          {{"no remedy: error at RMS 8", at("layernorm-float16", 8)},
           {"no remedy: error at RMS 64", at("layernorm-float16", 64)},
           {"clamp: largest error of the sweep", clamp},
           {"clamp: error at RMS 2", at("layernorm-float16-clamp", 2)},
           {"clamp: error at RMS 8", at("layernorm-float16-clamp", 8)},
           {"float32 inside: largest error of the sweep", wide}}};
}

Figure draw(const Table& source) {
  Figure figure{.title = "Layer norm of 512 features in float16, and two remedies"};
  Table table({"norm", "seed", "power", "error"});
  for (const auto& row : source.rows())
    table.add({row[0], row[2], std::log2(std::get<double>(row[1])), row[3]});
  Panel panel{.x_label = "RMS of the input, as a power of 2",
              .y_label = "RMS of the output's error",
              .y_scale = Scale::log10,
              .height = 260};
  for (const auto& [norm, name] : {std::pair{"layernorm-float16", "no remedy"},
                                   std::pair{"layernorm-float16-clamp", "input clamped"},
                                   std::pair{"layernorm-float16-f32stats", "float32 inside"}})
    add_lines(panel, name, table.where("norm", norm), "power", "error");
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment float16_remedies() {
  return {
      .name = "float16-remedies",
      .claim = "In float16, clamp before LayerNorm, or compute it in float32.",
      .source = "a common piece of advice",
      .literature =
          "Only one of the two is a remedy: float32 inside computes the same function (as "
          "mixed-precision training does, Micikevicius et al. 2017, arXiv 1710.03740), clamping "
          "another one for every input beyond the bound (follows from the definition).",
      .expected = Verdict::does_not_hold,
      .method =
          "Layer norm of 512 features with every intermediate rounded to float16, on 64 normal "
          "rows of RMS 1 to 1000 for each seed: as it is, with the input clamped to +-sqrt(65504 "
          "/ 1024), about 8, and with float32 or wider inside. 1024 is twice the number of "
          "features: so the largest bound at which a sum of 512 squares stays below half of the "
          "largest float16, and rounding cannot carry it over. RMS of the output's error against "
          "the norm in float32, whose output has an RMS of 1.",
      .rule =
          "Holds when in every seed both remedies keep the error at or below 0.02 over the whole "
          "sweep; does not hold when in every seed one of them does not. An error that is no "
          "number counts as infinite.",
      .data = Data::random,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
