// Where the gradients of Post-LN are large at initialisation: near the output, not near the input.
#include <algorithm>
#include <cmath>
#include <functional>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "train/profile.h"

namespace tapeformer::lab {

namespace {

// One model says little of a placement: at the far end of 48 layers its gradients differ by half
// from another's. So each seed stands for the mean over several draws of the weights.
std::vector<double> mean_gradients(const TransformerConfig& config, const Batch& batch,
                                   uint64_t seed, int64_t draws) {
  std::vector<double> means(config.layers);
  for (int64_t draw = 0; draw < draws; ++draw) {
    GPT model(config, seed + 1000 * draw);
    size_t block = 0;
    for (const auto& [name, norm] : profile(model, batch).gradient_norms)
      if (name.ends_with("ffn.down.weight")) means[block++] += norm / draws;
  }
  return means;
}

Table measure(const Laboratory& lab) {
  struct Run {
    std::string placement;
    int64_t layers;
    uint64_t seed;
    std::vector<double> gradients = {};
  };
  std::vector<Run> runs;
  for (const std::string placement : {"post", "pre", "deepnorm"})
    for (const int64_t layers : lab.size<std::vector<int64_t>>({6, 12, 24, 48}, {6, 12, 24}))
      for (const uint64_t seed : lab.seeds()) runs.push_back({placement, layers, seed});
  lab.for_each(runs.size(), [&](int64_t i) {
    Run& run = runs[i];
    run.gradients =
        mean_gradients(lab.reference(run.layers, "layernorm", run.placement),
                       lab.text(16, 64, run.seed).training_batch(0), run.seed, lab.size(8, 3));
    lab.log("post-gradients: " + run.placement + ", " + std::to_string(run.layers) + " layers");
  });
  Table table({"placement", "layers", "seed", "block", "gradient"});
  for (const Run& run : runs)
    for (size_t i = 0; i < run.gradients.size(); ++i)
      table.add({run.placement, double(run.layers), double(run.seed), i + 1.0, run.gradients[i]});
  return table;
}

// Per seed, of the models with so many layers: the gradient in the first block over the last's.
std::vector<double> first_over_last(const Table& table, const char* placement, double layers) {
  const Table models = table.where("placement", placement).where("layers", layers);
  return seed_by_seed(models.where("block", 1.0).numbers("gradient"),
                      models.where("block", layers).numbers("gradient"), std::divides());
}

double deepest(const Table& table) { return std::ranges::max(table.numbers("layers")); }

Judgement judge(const Table& table) {
  const double depth = deepest(table);
  Judgement judgement;
  for (const char* placement : {"post", "pre", "deepnorm"})
    judgement.measured.push_back(
        {std::string(placement) + ": first block's gradient over the last's",
         first_over_last(table, placement, depth)});
  std::vector<double> logarithms = judgement.measured[0].values;
  for (double& value : logarithms) value = std::log(value);
  const double margin = std::log(2);
  judgement.verdict = judge_differences(logarithms, margin);
  // Seeds that differ in whether it is reversed still agree that the early layers do not explode.
  const auto at_most = [=](double value) { return value <= margin; };
  if (judgement.verdict == Verdict::not_decidable && !logarithms.empty() &&
      std::ranges::all_of(logarithms, at_most))
    judgement.verdict = Verdict::does_not_hold;
  for (const double block : {1.0, depth})
    judgement.measured.push_back(
        {"post: gradient in block " + to_text(Cell(block)), table.where("placement", "post")
                                                                .where("layers", depth)
                                                                .where("block", block)
                                                                .numbers("gradient")});
  return judgement;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Gradient of the FFN's second weight at initialisation", .share_x = false};
  const Table models = table.where("layers", deepest(table));
  Panel depth{.x_label = "block, of " + to_text(Cell(deepest(table))),
              .y_label = "Frobenius norm",
              .y_scale = Scale::log10};
  Panel ratio{.x_label = "layers of the model",
              .y_label = "first block over last",
              .y_scale = Scale::log10,
              .levels = {{"equal", 1}}};
  for (const char* placement : {"post", "pre", "deepnorm"}) {
    add_lines(depth, placement, models.where("placement", placement), "block", "gradient");
    Line line{.label = placement, .markers = true};
    for (const Cell& layers : table.distinct("layers")) {
      line.x.push_back(std::get<double>(layers));
      line.y.push_back(spread(first_over_last(table, placement, line.x.back())).mean);
    }
    ratio.lines.push_back(line);
  }
  figure.add(depth);
  figure.add(ratio);
  return figure;
}

}  // namespace

Experiment post_gradients() {
  return {.name = "post-gradients",
          .claim = "Post-LN gradients explode in the early layers.",
          .source = "a common account of why Post-LN is hard to train",
          .literature =
              "Reversed: at initialisation they are large near the output, O(d sqrt(ln d)), and "
              "decay downward; under Pre-LN they are smaller by sqrt(L) (Xiong et al. 2020, "
              "theorem 1, arXiv 2002.04745).",
          .expected = Verdict::reversed,
          .method =
              "Frobenius norm of the gradient of the FFN's second weight, by block, in models of "
              "6, 12, 24 and 48 layers (quick: up to 24) at initialisation, one batch of 16 "
              "windows of 64 characters; post, pre and DeepNorm. For each seed the mean over 8 "
              "draws (quick: 3) of Xavier weights.",
          .rule =
              "Among the deepest models: holds when in every seed Post-LN's gradient in the first "
              "block is more than twice that in the last; reversed when it is always less than "
              "half of it; does not hold when it is never more than twice and not always less than "
              "half.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
