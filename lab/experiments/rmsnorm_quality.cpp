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
                          {.model = lab.reference(lab.size(3, 2), norm, placement),
                           .steps = lab.size(300, 100),
                           .seed = seed,
                           .validation_batches = 40,
                           .prepare = [shift](GPT& model) { shift_weights(model, shift); }}});
  return train_all(lab, {"placement", "norm", "shift", "seed"}, runs);
}

// RMSNorm's loss above LayerNorm's, over all shifts and seeds.
std::vector<double> disadvantage(const Table& table, const char* placement) {
  const Table runs = table.where("placement", placement);
  return difference(losses(runs.where("norm", "rmsnorm")), losses(runs.where("norm", "layernorm")));
}

Judgement judge(const Table& table) {
  constexpr double margin = 0.03;
  const auto with = disadvantage(table, "pre"), without = disadvantage(table, "no-residual");
  const Verdict worse_with = judge_differences(with, margin);
  const Verdict as_good = worse_with == Verdict::does_not_hold || worse_with == Verdict::reversed
                              ? Verdict::holds
                          : worse_with == Verdict::holds ? Verdict::does_not_hold
                                                         : Verdict::not_decidable;
  return {both(as_good, judge_differences(without, margin)),
          {{"RMSNorm - LayerNorm, with residuals, nats", with},
           {"RMSNorm - LayerNorm, without residuals, nats", without}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "LayerNorm and RMSNorm from weights with a mean"};
  for (const std::string placement : {"pre", "no-residual"}) {
    Panel panel{.title = placement == "pre" ? "With residuals (pre)" : "Without residuals",
                .x_label = "mean of the weights at the start, standard deviations",
                .y_label = "nats per character",
                .height = 180};
    for (const std::string norm : {"layernorm", "rmsnorm"})
      add_line(panel, table.where("placement", placement).where("norm", norm), "shift", "loss",
               norm);
    figure.add(panel);
  }
  return figure;
}

}  // namespace

Experiment rmsnorm_quality() {
  return {.name = "rmsnorm-quality",
          .claim = "RMSNorm is as good as LayerNorm because residuals make up for the mean.",
          .source = "said in explanations of RMSNorm",
          .literature =
              "As good: yes (Zhang & Sennrich 2019, arXiv 1910.07467, who think that re-centring "
              "is dispensable as such). For the reason there is no support.",
          .expected = Verdict::does_not_hold,
          .method =
              "Both norms in three layers, 300 steps, with residuals and without; all embeddings "
              "and linear maps start with mean 0, or shifted by 0.2 or 1 of their standard "
              "deviations.",
          .rule =
              "Holds when with residuals RMSNorm is never worse by more than 0.03 nats, whatever "
              "the shift and seed, and without them it always is. Does not hold when without them "
              "it never is either: then residuals are not the reason.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
