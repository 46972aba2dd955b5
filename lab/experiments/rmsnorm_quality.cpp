// RMSNorm is as good as LayerNorm, it is said, because residuals make up for the mean.
#include <cmath>

#include "core/kernels.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"

namespace tapeformer::lab {
namespace {

// Adds to every weight of the embeddings and linear maps `deviations` of its standard deviations.
void shift_weights(GPT& model, double deviations) {
  for (const NamedTensor& entry : named_parameters(model)) {
    if (entry.tensor.rank() < 2) continue;
    double sum_of_squares = 0;
    for (const float w : entry.tensor.to_vector<float>()) sum_of_squares += double(w) * w;
    const double deviation = std::sqrt(sum_of_squares / double(entry.tensor.numel()));
    kernels::affine(entry.tensor.detach(), 1.0, deviations * deviation,
                    Destination{entry.tensor.detach()});
  }
}

Table measure(const Laboratory& lab) {
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const std::string placement : {"pre", "no-residual"})
      for (const double shift : {0.0, 0.2, 1.0})
        for (const std::string norm : {"layernorm", "rmsnorm"})
          runs.push_back({{placement, norm, shift, double(seed)},
                          {.model = lab.reference(2, norm, placement),
                           .steps = lab.size(400, 100),
                           .seed = seed,
                           .validation_batches = 40,
                           .prepare = [shift](GPT& model) { shift_weights(model, shift); }}});
  return train_all(lab, {"placement", "norm", "shift", "seed"}, runs);
}

// RMSNorm's loss above LayerNorm's, seed by seed.
std::vector<double> disadvantage(const Table& table, const char* placement, double shift) {
  const Table runs = table.where("placement", placement).where("shift", shift);
  return difference(losses(runs.where("norm", "rmsnorm")), losses(runs.where("norm", "layernorm")));
}

Verdict not_worse(const std::vector<double>& disadvantages, double margin) {
  switch (judge_differences(disadvantages, margin)) {
    case Verdict::does_not_hold:
    case Verdict::reversed:
      return Verdict::holds;
    case Verdict::holds:
      return Verdict::does_not_hold;
    default:
      return Verdict::not_decidable;
  }
}

Judgement judge(const Table& table) {
  constexpr double margin = 0.03;
  const auto as_good = [&](double shift) {
    return not_worse(disadvantage(table, "pre", shift), margin);
  };
  // Residuals make up for the mean where RMSNorm does not mind one with them, but does without.
  const Verdict without = judge_differences(disadvantage(table, "no-residual", 0.2), margin);
  const Verdict makes_up = both(both(as_good(0.2), as_good(1)), without);
  const auto part = [](const char* words, Verdict verdict) {
    return words + std::string(" (") + name_of(verdict) + ")";
  };
  Judgement result{both(as_good(0), makes_up),
                   {},
                   "The four parts: with residuals as good from weights with mean 0" +
                       part("", as_good(0)) + ", " + part("with mean 0.2", as_good(0.2)) + ", " +
                       part("with mean 1", as_good(1)) + "; " +
                       part("without residuals worse from weights with mean 0.2", without) + "."};
  for (const char* placement : {"pre", "no-residual"})
    for (const double shift : {0.0, 0.2, 1.0})
      result.measured.push_back({std::string("RMSNorm - LayerNorm, ") + placement +
                                     ", weights shifted by " + to_text(Cell(shift)) +
                                     " deviations, nats",
                                 disadvantage(table, placement, shift)});
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "LayerNorm and RMSNorm from weights with a mean"};
  for (const std::string placement : {"pre", "no-residual"}) {
    Panel panel{.title = placement == "pre" ? "With residuals (pre)" : "Without residuals",
                .x_label = "mean of the weights at the start, standard deviations",
                .y_label = "nats per character",
                .height = 180};
    for (const std::string norm : {"layernorm", "rmsnorm"})
      add_lines(panel, norm, table.where("placement", placement).where("norm", norm), "shift",
                "loss");
    figure.add(panel);
  }
  return figure;
}

}  // namespace

Experiment rmsnorm_quality() {
  return {
      .name = "rmsnorm-quality",
      .claim = "RMSNorm is as good as LayerNorm because residuals make up for the mean.",
      .source = "said in explanations of RMSNorm",
      .literature =
          "As good: yes (Zhang & Sennrich 2019, arXiv 1910.07467, who think that re-centring is "
          "dispensable as such). For the reason there is no support.",
      .expected = Verdict::does_not_hold,
      .method =
          "Both norms in two layers, 400 steps (quick: 100), with residuals (pre) and without; "
          "all embeddings and linear maps start with mean 0, or shifted by 0.2 or 1 of their "
          "standard deviations.",
      .rule =
          "As good: in every seed RMSNorm's loss is not more than 0.03 nats above LayerNorm's. "
          "Holds when with residuals it is as good from weights with any of the three means, and "
          "without residuals worse from weights with mean 0.2, in every seed. Does not hold when "
          "one of the four always fails. A run that diverged counts as infinitely bad.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
