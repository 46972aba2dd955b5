// Which norms couple the samples of a batch, and which show a token what comes after it.
#include "train/leak.h"

#include <algorithm>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "layers/float16.h"

namespace tapeformer::lab {

namespace {

constexpr int batch_judged = 16;

// All that there are, a user's own among them; not the emulations of float16, which have no
// backward.
std::vector<std::string> norms() {
  std::vector<std::string> names = norm_names();
  for (const char* norm : {"layernorm", "rmsnorm"})
    for (const std::string& emulation : float16_norms_of(norm)) std::erase(names, emulation);
  return names;
}

// What a norm says of itself, in training.
const char* mixes(const std::string& norm) {
  constexpr const char* words[] = {"nothing", "time", "samples"};
  return words[static_cast<int>(find_norm(norm)(64)->mixes(true))];
}

Table measure(const Laboratory& lab) {
  struct Run {
    std::string norm;
    int64_t batch;
    uint64_t seed;
    std::vector<LeakReport> reports = {};
  };
  std::vector<Run> runs;
  for (const std::string& norm : norms())
    for (const int64_t batch : lab.size<std::vector<int64_t>>({2, 4, 8, 16, 32}, {2, 16}))
      for (const uint64_t seed : lab.seeds()) runs.push_back({norm, batch, seed});
  lab.for_each(runs.size(), [&](int64_t i) {
    Run& run = runs[i];
    GPT model(lab.reference(2, run.norm, "pre"), run.seed);
    const Tensor tokens = lab.text(run.batch, 32, run.seed).training_batch(0).inputs;
    for (const bool training : {true, false})
      run.reports.push_back(leak_test(model, tokens, training));
    lab.log("leak: " + run.norm + ", batch " + std::to_string(run.batch));
  });
  Table table({"norm", "mixes", "mode", "batch", "seed", "later_token", "other_sample",
               "later_gradient", "other_gradient"});
  for (const Run& run : runs)
    for (const LeakReport& report : run.reports)
      table.add({run.norm, mixes(run.norm), report.training ? "training" : "evaluation",
                 double(run.batch), double(run.seed), report.later_token.largest,
                 report.other_sample.largest, report.later_gradient, report.other_gradient});
  return table;
}

std::vector<double> values(const Table& table, const std::string& norm, const char* mode,
                           const char* column) {
  return table.where("norm", norm)
      .where("mode", mode)
      .where("batch", double{batch_judged})
      .numbers(column);
}

// The names of the norms that say they mix nothing, and the largest of all that they must not do.
std::pair<std::string, double> of_single_tokens(const Table& table) {
  std::string names;
  for (const Cell& norm : table.distinct("norm"))
    names += (names.empty() ? "" : ", ") + to_text(norm);
  double largest = 0;
  for (const char* column : {"later_token", "other_sample", "later_gradient", "other_gradient"})
    for (const double value : table.numbers(column))
      largest = std::isnan(value) ? INFINITY : std::max(largest, value);
  return {names, largest};
}

Judgement judge(const Table& table) {
  // What rounding alone could move in logits of about 1 is a thousand times smaller.
  constexpr double margin = 1e-3;
  Judgement judgement{
      judge_differences(smaller(values(table, "batchnorm", "training", "later_token"),
                                values(table, "batchnorm", "training", "other_sample")),
                        margin),
      {}};
  const auto [names, largest] = of_single_tokens(table.where("mixes", "nothing"));
  judgement.measured.push_back({"the largest of all changes and gradients of " + names, {largest}});
  for (const Cell& cell : table.distinct("norm")) {
    const std::string norm = to_text(cell);
    if (table.where("norm", norm).distinct("mixes").front() == Cell("nothing")) continue;
    const auto add = [&](const char* what, const char* mode, const char* column) {
      judgement.measured.push_back(
          {norm + ", " + std::to_string(batch_judged) + " samples: " + what,
           values(table, norm, mode, column)});
    };
    add("earlier logits move by", "training", "later_token");
    add("gradient that reaches later tokens", "training", "later_gradient");
    add("other samples' logits move by", "training", "other_sample");
    add("earlier logits move outside training by", "evaluation", "later_token");
  }
  return judgement;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Largest change of logits that must not change, while training"};
  Panel later{.title = "Another last token: earlier logits", .y_label = "change of logits"};
  Panel other{.title = "Another sample: the others' logits",
              .x_label = "samples in the batch",
              .y_label = "change of logits"};
  // Without padding, layernorm-time and instancenorm are the same.
  for (const char* norm : {"layernorm", "batchnorm", "instancenorm", "groupnorm-time"}) {
    const Table runs = table.where("norm", norm).where("mode", "training");
    add_lines(later, norm, runs, "batch", "later_token");
    add_lines(other, norm, runs, "batch", "other_sample");
  }
  figure.add(later);
  figure.add(other);
  return figure;
}

}  // namespace

Experiment leak() {
  return {
      .name = "leak",
      .claim = "BatchNorm couples samples; in a causal model it leaks future tokens.",
      .source = "the first is often said, the second rarely",
      .literature =
          "True, both: the statistics are those of all tokens of the batch (follows from Ioffe & "
          "Szegedy 2015, algorithm 1, arXiv 1502.03167).",
      .expected = Verdict::holds,
      .method =
          "Two Pre-LN layers at initialisation, every norm that has a name, batches of 2 to 32 "
          "windows (quick: 2 and 16) of 32 characters: once with another last token in the first "
          "sample, once with all of its tokens changed. Looked at are the logits that must not "
          "change (the largest change) and the gradient of one output by the embedded tokens it "
          "must not see, with the statistics of training and of use. First come the norms that "
          "say of themselves that they mix nothing, then the others.",
      .rule =
          "At 16 samples, in training: holds when in every seed both a later token and another "
          "sample move a logit by more than 0.001 under BatchNorm; does not hold when in every "
          "seed one of them does not.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
