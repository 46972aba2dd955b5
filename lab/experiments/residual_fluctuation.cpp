// How much the variance of the residual stream goes up and down from step to step.
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "train/profile.h"

namespace tapeformer::lab {

namespace {

Table measure(const Laboratory& lab) {
  const int64_t steps = lab.size(300, 120);
  struct Run {
    std::string norm;
    int64_t batch;
    uint64_t seed;
    std::vector<double> variances = {};
  };
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const int64_t batch : {4, 8, 16})
      for (const std::string norm : {"layernorm", "batchnorm"}) runs.push_back({norm, batch, seed});
  lab.for_each(runs.size(), [&](int64_t i) {
    Run& run = runs[i];
    const TextCorpus corpus = lab.text(run.batch, 64, run.seed);
    lab.train_on_text({.model = lab.reference(4, run.norm, "pre"),
                       .batch = run.batch,
                       .steps = steps,
                       .seed = run.seed,
                       .validation_batches = 1,
                       .after_step = [&](int64_t step, GPT& model) {
                         if (step < steps / 2) return;
                         const Tensor next = corpus.training_batch(step).inputs;
                         run.variances.push_back(std::pow(stream_rms(model, next).back(), 2));
                       }});
    run.variances.resize(steps - steps / 2 + 1, NAN);  // where the run diverged
    lab.log("residual-fluctuation: " + run.norm + ", batch " + std::to_string(run.batch));
  });
  Table table({"norm", "batch", "seed", "step", "variance"});
  for (const Run& run : runs)
    for (size_t i = 0; i < run.variances.size(); ++i)
      table.add(
          {run.norm, double(run.batch), double(run.seed), double(steps / 2 + i), run.variances[i]});
  return table;
}

// The standard deviation of variance / trend, the trend being the mean of the 21 steps around.
double fluctuation(const std::vector<double>& variances) {
  constexpr size_t half = 10;
  std::vector<double> ratios;
  for (size_t i = half; i + half < variances.size(); ++i) {
    double trend = 0;
    for (size_t j = i - half; j <= i + half; ++j) trend += variances[j] / (2 * half + 1);
    ratios.push_back(variances[i] / trend);
  }
  return spread(ratios).deviation;
}

// One for each seed.
std::vector<double> fluctuations(const Table& table, const char* norm, double batch) {
  const Table runs = table.where("norm", norm).where("batch", batch);
  std::vector<double> result;
  for (const Cell& seed : runs.distinct("seed"))
    result.push_back(fluctuation(runs.where("seed", seed).numbers("variance")));
  return result;
}

Judgement judge(const Table& table) {
  const auto layer = fluctuations(table, "layernorm", 16),
             batch = fluctuations(table, "batchnorm", 16);
  const auto logarithms =
      seed_by_seed(batch, layer, [](double b, double l) { return std::log(b / l); });
  Judgement judgement{judge_differences(logarithms, std::log(1.5)), {}};
  for (const Cell& rows : table.distinct("batch"))
    for (const char* norm : {"layernorm", "batchnorm"})
      judgement.measured.push_back(
          {std::string(norm) + ", batch " + to_text(rows) + ": coefficient of variation",
           fluctuations(table, norm, std::get<double>(rows))});
  return judgement;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Variance of the residual stream in training, one seed"};
  const Table seed = table.where("seed", table.distinct("seed").front());
  for (const Cell& batch : table.distinct("batch")) {
    Panel panel{.title = "Batch " + to_text(batch), .y_label = "mean square", .height = 150};
    for (const char* norm : {"layernorm", "batchnorm"})
      add_lines(panel, norm, seed.where("batch", batch).where("norm", norm), "step", "variance");
    figure.add(panel);
  }
  figure.panels.back().x_label = "step";
  return figure;
}

}  // namespace

Experiment residual_fluctuation() {
  return {
      .name = "residual-fluctuation",
      .claim = "BatchNorm makes the variance of the residual stream fluctuate.",
      .source = "said in comparisons of norms for Transformers",
      .literature =
          "Open. The statistics of a batch do vary far more in language than in vision (Shen "
          "et al. 2020, arXiv 2003.07845), but the residual stream was not measured.",
      .method =
          "Mean square of the stream after the last of four Pre-LN layers, on every training "
          "batch before its step, with the batch's statistics, over the second half of 300 "
          "steps (quick: 120). Coefficient of variation: the standard deviation of its ratio to "
          "the mean of the 21 steps around. Batches of 4, 8 and 16 windows.",
      .rule =
          "At batch 16: holds when in every seed BatchNorm's coefficient is more than 1.5 "
          "times LayerNorm's; reversed when LayerNorm's always is more than 1.5 times "
          "BatchNorm's; does not hold when neither ever is. A run that diverged leaves it "
          "undecided.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
