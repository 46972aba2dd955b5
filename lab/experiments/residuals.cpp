// Residuals let gradients flow; both residual and norm are needed, it is said.

#include "core/check.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "train/profile.h"

namespace tapeformer::lab {
namespace {

struct Design {
  const char *name, *placement, *norm;
};
constexpr Design designs[] = {{"residual and norm", "pre", "layernorm"},
                              {"norm alone", "no-residual", "layernorm"},
                              {"residual alone", "pre", "none"},
                              {"ReZero", "rezero", "layernorm"},
                              {"residual and DyT", "pre", "dyt"}};

// What reaches the bottom of the stack: the norm of the gradient of the embeddings.
double gradient_at_the_bottom(GPT& model, const Corpus& corpus) {
  for (const NamedValue& entry : profile(model, corpus.training_batch(0)).gradient_norms)
    if (entry.name == "token_embedding.weight") return entry.value;
  fail("residuals: the model has no embeddings");
}

Table measure(const Laboratory& lab) {
  const auto depths = lab.quick() ? std::vector<int64_t>{12} : std::vector<int64_t>{12, 24};
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const int64_t depth : depths)
      for (const Design& design : designs)
        runs.push_back({{design.name, double(depth), double(seed)},
                        {.model = lab.reference(depth, design.norm, design.placement),
                         .batch = 8,
                         .steps = lab.size(150, 60),
                         .clip = 1,
                         .seed = seed,
                         .validation_batches = 40}});
  std::vector<double> gradients(runs.size());
  for (size_t i = 0; i < runs.size(); ++i)
    runs[i].trial.prepare = [&, i](GPT& model) {
      gradients[i] = gradient_at_the_bottom(model, lab.text(8, 64, runs[i].trial.seed));
    };
  const Table trained = train_all(lab, {"design", "depth", "seed"}, runs);
  std::vector<std::string> columns = trained.columns();
  columns.push_back("gradient");
  Table table(columns);
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<Cell> row = trained.rows()[i];
    row.emplace_back(gradients[i]);
    table.add(row);
  }
  return table;
}

Judgement judge(const Table& table) {
  const Table deepest = table.where("depth", table.distinct("depth").back());
  const auto of = [&](const char* design) { return deepest.where("design", design); };
  const auto reference = losses(of("residual and norm"));
  auto without_norm = losses(of("residual alone"));  // the best way of doing without one
  for (const char* design : {"ReZero", "residual and DyT"})
    without_norm = smaller(without_norm, losses(of(design)));
  const auto residual = difference(losses(of("norm alone")), reference);
  const auto norm = difference(without_norm, reference);
  Judgement result{both(judge_differences(residual, 0.1), judge_differences(norm, 0.1)),
                   {{"lost without the residual, nats", residual},
                    {"lost without the norm, in the best design, nats", norm}}};
  for (const Design& d : designs) {
    result.measured.push_back({std::string(d.name) + ": loss, nats", losses(of(d.name))});
    result.measured.push_back({std::string(d.name) + ": first gradient of the embeddings",
                               of(d.name).numbers("gradient")});
  }
  return result;
}

// The runs whose loss fits on a plot of those that learned something.
Table on_the_scale(const Table& runs) {
  Table result(runs.columns());
  const auto loss = losses(runs);
  for (size_t i = 0; i < loss.size(); ++i)
    if (loss[i] < 5) result.add(runs.rows()[i]);
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "What residual and norm are for"};
  Panel loss{.title = "Loss on held-out text at the end",
             .x_label = "layers",
             .y_label = "nats per character",
             .height = 220};
  Panel gradient{.title = "Gradient that reaches the embeddings at the start",
                 .x_label = "layers",
                 .y_label = "Frobenius norm",
                 .y_scale = Scale::log10,
                 .height = 220};
  for (const Design& design : designs) {
    const Table runs = table.where("design", design.name), shown = on_the_scale(runs);
    const bool all = shown.rows().size() == runs.rows().size();
    add_lines(loss, design.name + std::string(all ? "" : " (above 5)"), shown, "depth", "loss");
    add_lines(gradient, design.name, runs, "depth", "gradient");
  }
  figure.add(loss);
  figure.add(gradient);
  return figure;
}

}  // namespace

Experiment residuals() {
  return {.name = "residuals",
          .claim = "Residuals let gradients flow; both residual and norm are needed.",
          .source = "explanations of the Transformer",
          .literature =
              "The residual: yes. The norm: ReZero (Bachlechner et al. 2020, arXiv 2003.04887) "
              "and DyT (Zhu et al. 2025, arXiv 2503.10622) do without.",
          .expected = Verdict::does_not_hold,
          .method =
              "12 and 24 layers (quick: 12), 150 steps (quick: 60) of 8 rows, clipped to 1: x + "
              "f(N(x)), N(f(x)), x + f(x), ReZero's x + a f(x), and x + f(DyT(x)). Before the "
              "first step the gradient of the embeddings, which are below all layers.",
          .rule =
              "Holds when in every seed the deepest model loses more than 0.1 nats without the "
              "residual, and more than 0.1 in the best of the three designs without norm. A run "
              "that diverged counts as infinitely bad.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
