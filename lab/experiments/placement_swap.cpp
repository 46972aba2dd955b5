// What becomes of a Post-LN model whose weights go on as those of a Pre-LN model.
#include <algorithm>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "train/evaluation.h"

namespace tapeformer::lab {

namespace {

constexpr int64_t layers = 4;

struct Run {
  std::string name, first, second;  // placements before and after the swap
  uint64_t seed = 1;
  // Every so many steps, the first at once after the swap; no number from where a run diverged.
  std::vector<double> losses = {};
};

// Both parts have an optimizer and batches of their own, so that all runs differ in placement only.
void train_twice(const Laboratory& lab, Run& run, int64_t steps, int64_t more, int64_t every) {
  const auto config = [&](const std::string& placement) {
    return lab.reference(layers, "layernorm", placement);
  };
  Trial trial{.model = config(run.first),
              .steps = steps,
              .warmup = steps / 4,
              .seed = run.seed,
              .validation_batches = 1};
  run.losses.assign(1 + more / every, NAN);
  GPT model(trial.model, run.seed);
  if (train(model, lab.text(16, 64, run.seed), trial).diverged) return;
  GPT other(config(run.second), run.seed);
  copy_tensors(model, other);  // a final norm that Post-LN lacks starts fresh

  const TextCorpus corpus = lab.text(16, 64, run.seed + 1000);
  run.losses[0] = evaluate(other, corpus, 20);
  trial.steps = more;
  trial.warmup = 0;
  trial.after_step = [&](int64_t step, GPT& m) {
    if (step % every == 0) run.losses[step / every] = evaluate(m, corpus, 20);
  };
  train(other, corpus, trial);
  lab.log("placement-swap: " + run.name);
}

Table measure(const Laboratory& lab) {
  const int64_t steps = lab.size(400, 200), more = lab.size(200, 100), every = 20;
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds()) {
    runs.push_back({"post, swapped to pre", "post", "pre", seed});
    runs.push_back({"post", "post", "post", seed});
    runs.push_back({"pre", "pre", "pre", seed});
  }
  lab.for_each(runs.size(), [&](int64_t i) { train_twice(lab, runs[i], steps, more, every); });
  Table table({"run", "seed", "step", "loss"});
  for (const Run& run : runs)
    for (size_t i = 0; i < run.losses.size(); ++i)
      table.add({run.name, double(run.seed), double(steps + i * every), run.losses[i]});
  return table;
}

// One for each seed: the steps after which the swapped model is no worse than before the swap;
// infinite where it never is.
std::vector<double> recovery(const Table& table) {
  std::vector<double> result;
  for (const Cell& seed : table.distinct("seed")) {
    const Table runs = table.where("seed", seed);
    const Table swapped = runs.where("run", "post, swapped to pre");
    const auto losses = swapped.numbers("loss"), steps = swapped.numbers("step");
    const double before = runs.where("run", "post").numbers("loss").front();
    const auto back = std::ranges::find_if(losses, [=](double loss) { return loss <= before; });
    result.push_back(back == losses.end() ? INFINITY : steps[back - losses.begin()] - steps[0]);
  }
  return result;
}

Judgement judge(const Table& table) {
  const std::vector<double> steps = table.where("run", "post").numbers("step");
  const auto losses = [&](const char* run, double step) {
    return table.where("run", run).where("step", step).numbers("loss");
  };
  const double swap = steps.front(), end = steps.back();
  const auto swapped = losses("post, swapped to pre", end), post = losses("post", end);
  return {judge_differences(difference(swapped, post), 0.02),
          {{"loss at the swap, post", losses("post", swap)},
           {"loss at the swap, as pre", losses("post, swapped to pre", swap)},
           {"steps until the swapped model is back at that of post", recovery(table)},
           {"loss at the end, post", post},
           {"loss at the end, swapped to pre", swapped},
           {"loss at the end, pre from scratch", losses("pre", end)}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "Post-LN weights that go on as Pre-LN"};
  Panel panel{.x_label = "step", .y_label = "validation loss (nats per character)", .height = 280};
  for (const Cell& run : table.distinct("run"))
    add_lines(panel, to_text(run), table.where("run", run), "step", "loss");
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment placement_swap() {
  return {
      .name = "placement-swap",
      .claim = "Do not swap Post-LN to Pre-LN when fine-tuning.",
      .source = "a common piece of advice",
      .literature =
          "Supported by what the two compute: Post-LN's stream is normed after every "
          "sub-layer, Pre-LN's grows, so the weights of one meet other inputs in the other "
          "(Xiong et al. 2020, arXiv 2002.04745).",
      .expected = Verdict::holds,
      .method =
          "Four layers, 400 steps of 16 windows as Post-LN (warm-up 100), then 200 more: with the "
          "same weights as Pre-LN with a fresh final norm, unchanged as Post-LN, and beside "
          "them Pre-LN throughout. Quick: 200 steps (warm-up 50) and 100. All begin the second "
          "part with a fresh optimizer, no warm-up and new batches.",
      .rule =
          "Holds when in every seed the swapped model ends more than 0.02 nats above the one "
          "that stayed Post-LN; reversed when always more than that below; does not hold when "
          "always between. A run that diverged leaves it undecided.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
