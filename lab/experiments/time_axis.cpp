// What a norm along the time axis shows in teacher forcing and costs in generation.
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "train/leak.h"

namespace tapeformer::lab {

namespace {

Table measure(const Laboratory& lab) {
  constexpr int64_t every = 100;
  const int64_t steps = lab.size(500, 200);
  struct Run {
    std::string norm;
    uint64_t seed;
    std::vector<PrefixLoss> losses = {};
  };
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const std::string norm : {"layernorm", "layernorm-time"}) runs.push_back({norm, seed});
  lab.for_each(runs.size(), [&](int64_t i) {
    Run& run = runs[i];
    const TextCorpus corpus = lab.text(16, 64, run.seed);
    lab.train_on_text({.model = lab.reference(2, run.norm, "pre"),
                       .steps = steps,
                       .seed = run.seed,
                       .validation_batches = 1,
                       .after_step = [&](int64_t step, GPT& model) {
                         if (step % every == 0)
                           run.losses.push_back(prefix_evaluation(model, corpus, 2));
                       }});
    run.losses.resize(steps / every, {NAN, NAN});  // where the run diverged
    lab.log("time-axis: " + run.norm);
  });
  Table table({"norm", "seed", "step", "teacher_forced", "prefix"});
  for (const Run& run : runs)
    for (size_t i = 0; i < run.losses.size(); ++i)
      table.add({run.norm, double(run.seed), double((i + 1) * every), run.losses[i].teacher_forced,
                 run.losses[i].prefix});
  return table;
}

Judgement judge(const Table& table) {
  const double end = table.where("norm", "layernorm").numbers("step").back();
  const auto losses = [&](const char* norm, const char* kind) {
    return table.where("norm", norm).where("step", end).numbers(kind);
  };
  const auto layer = losses("layernorm", "prefix"), time = losses("layernorm-time", "prefix");
  return {judge_differences(difference(time, layer), 0.05),
          {{"over features: teacher-forced loss", losses("layernorm", "teacher_forced")},
           {"over features: loss prefix by prefix", layer},
           {"over time: teacher-forced loss", losses("layernorm-time", "teacher_forced")},
           {"over time: loss prefix by prefix", time}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "Layer norm over features and over time"};
  Panel panel{
      .x_label = "training step", .y_label = "validation loss (nats per character)", .height = 280};
  for (const auto& [norm, name] :
       {std::pair{"layernorm", "over features"}, std::pair{"layernorm-time", "over time"}}) {
    const Table runs = table.where("norm", norm);
    add_lines(panel, std::string(name) + ", prefix by prefix", runs, "step", "prefix");
    add_lines(panel, std::string(name) + ", teacher-forced", runs, "step", "teacher_forced");
  }
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment time_axis() {
  return {
      .name = "time-axis",
      .claim = "Normalising along the time axis hurts.",
      .source = "a warning about a common mistake, layer norm over the wrong axis",
      .literature =
          "True for generation: statistics over time show a token what comes later, which a causal "
          "model has in teacher forcing but not when it generates (follows from the definition).",
      .expected = Verdict::holds,
      .method =
          "Two Pre-LN layers, 500 steps (quick: 200) of 16 windows, layer norm over the features "
          "and "
          "over time. Validation loss of 32 windows in one pass (teacher-forced), and with every "
          "prediction "
          "made from its prefix alone, as generation has it.",
      .rule =
          "Holds when in every seed the loss prefix by prefix is more than 0.05 nats higher with "
          "the norm over time; reversed when it is always more than that lower; does not hold when "
          "always between. A run that diverged leaves it undecided.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
