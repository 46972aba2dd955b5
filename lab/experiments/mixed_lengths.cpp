// Batch statistics over long and short lines, and on lines longer than any of training.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"

namespace tapeformer::lab {
namespace {

constexpr int64_t context = 96;

// The training batches of `all` without the lines of more than `longest` tokens.
class ShortLines : public Corpus {
 public:
  ShortLines(const Corpus& all, int64_t longest)
      : Corpus({.rows = 1}), all_(all), longest_(longest) {}

  Batch training_batch(int64_t step, int64_t micro_batch) const override {
    // Not every batch has a short line; then one of the next does.
    for (int64_t next = micro_batch; next < micro_batch + 1000; ++next)
      if (Batch batch = short_lines_of(all_.training_batch(step, next)); batch.tokens > 0)
        return batch;
    fail("lengths: no line for training is as short as the shortest third of those held out, ",
         longest_, " tokens; give more lines");
  }
  int64_t training_tokens() const override { return all_.training_tokens(); }
  int64_t validation_tokens() const override { return all_.validation_tokens(); }
  // An example of this corpus is a whole batch of the other.
  int64_t validation_examples() const override { return all_.validation_batches(); }

 private:
  Batch short_lines_of(const Batch& batch) const {
    const auto lengths = batch.lengths.to_vector<int32_t>();
    std::vector<int32_t> rows, kept;
    for (size_t row = 0; row < lengths.size(); ++row)
      if (lengths[row] <= longest_) {
        rows.push_back(int32_t(row));
        kept.push_back(lengths[row]);
      }
    Batch result{pick(batch.inputs, rows), pick(batch.targets, rows),
                 Tensor::from(kept, {int64_t(kept.size())}), 0};
    for (const int32_t length : kept) result.tokens += length;
    return result;
  }
  // Some rows of x [B,T], without the columns that only longer lines need.
  Tensor pick(const Tensor& x, const std::vector<int32_t>& rows) const {
    const int64_t T = x.dim(1), kept = std::min(T, longest_);
    const auto in = x.to_vector<int32_t>();
    std::vector<int32_t> out;
    for (const int32_t row : rows)
      out.insert(out.end(), in.begin() + row * T, in.begin() + row * T + kept);
    return Tensor::from(out, {int64_t(rows.size()), kept});
  }
  Batch validation_rows(const std::vector<int64_t>& examples) const override {
    return all_.validation_batch(examples[0], all_.validation_batches());
  }
  const Corpus& all_;
  int64_t longest_;
};

// The lengths that part the held-out lines into thirds: {6, 8}.
std::pair<int64_t, int64_t> thirds(const Corpus& corpus) {
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < corpus.validation_batches(); ++i)
    for (const int32_t length :
         corpus.validation_batch(i, corpus.validation_batches()).lengths.to_vector<int32_t>())
      lengths.push_back(length);
  std::ranges::sort(lengths);
  return {lengths[lengths.size() / 3], lengths[2 * lengths.size() / 3]};
}

// Evaluation loss of the held-out lines of more than `above` and at most `longest` tokens.
double loss_of_lengths(GPT& model, const Corpus& corpus, int64_t above, int64_t longest) {
  double sum = 0, tokens = 0;
  const int64_t count = corpus.validation_batches(40);
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = corpus.validation_batch(i, count);
    auto targets = batch.targets.to_vector<int32_t>();
    const auto lengths = batch.lengths.to_vector<int32_t>();
    const int64_t T = batch.targets.dim(1);
    double counted = 0;
    for (size_t row = 0; row < lengths.size(); ++row) {
      const bool inside = lengths[row] > above && lengths[row] <= longest;
      if (!inside) std::fill_n(targets.begin() + row * T, T, -1);
      counted += inside ? lengths[row] : 0;
    }
    if (counted == 0) continue;
    const Tensor masked = Tensor::from(targets, batch.targets.shape());
    sum += counted * model.loss(batch.inputs, masked, {.lengths = batch.lengths}).item();
    tokens += counted;
  }
  return sum / tokens;
}

// Losses on the short, the middle and the long lines of a model trained on all of them, or on the
// short ones.
std::vector<double> losses_of(const Laboratory& lab, bool only_short, const std::string& norm,
                              uint64_t seed) {
  Trial trial{.model = lab.reference_of_lines(2, norm, "pre"),
              .steps = lab.size(800, 200),
              .seed = seed,
              .validation_batches = 1};
  trial.model.context = context;
  trial.model.position = "alibi";  // works on longer lines than those of training
  const LineCorpus all = lab.lines(lab.size(64, 16), context, seed);
  const auto [lower, upper] = thirds(all);
  const ShortLines short_lines(all, lower);
  GPT model(trial.model, seed);
  const Corpus& trained_on = only_short ? static_cast<const Corpus&>(short_lines) : all;
  if (train(model, trained_on, trial).diverged) return {NAN, NAN, NAN};
  return {loss_of_lengths(model, all, 0, lower), loss_of_lengths(model, all, lower, upper),
          loss_of_lengths(model, all, upper, context)};
}

Table measure(const Laboratory& lab, bool only_short) {
  struct Setting {
    std::string norm;
    uint64_t seed;
  };
  std::vector<Setting> settings;
  for (const uint64_t seed : lab.seeds())
    for (const std::string norm : {"layernorm", "batchnorm"}) settings.push_back({norm, seed});
  std::vector<std::vector<double>> losses(settings.size());
  lab.for_each(settings.size(), [&](int64_t i) {
    losses[i] = losses_of(lab, only_short, settings[i].norm, settings[i].seed);
    lab.log("lengths: " + settings[i].norm + ", seed " + std::to_string(settings[i].seed));
  });
  Table table({"norm", "seed", "third", "loss"});
  for (size_t i = 0; i < settings.size(); ++i)
    for (size_t third = 0; third < 3; ++third)
      table.add({settings[i].norm, double(settings[i].seed), double(third + 1), losses[i][third]});
  return table;
}

// How much worse BatchNorm does than LayerNorm on a third of the lines, seed by seed.
std::vector<double> gap(const Table& table, double third) {
  const Table runs = table.where("third", third);
  return difference(losses(runs.where("norm", "batchnorm")),
                    losses(runs.where("norm", "layernorm")));
}

// Whether it does worse on one third than on another.
Judgement judge(const Table& table, double worse, double better) {
  return {judge_differences(difference(gap(table, worse), gap(table, better)), 0.02),
          {{"BatchNorm - LayerNorm, short lines, nats", gap(table, 1)},
           {"BatchNorm - LayerNorm, middle lines, nats", gap(table, 2)},
           {"BatchNorm - LayerNorm, long lines, nats", gap(table, 3)}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "Loss by length of the line"};
  Panel panel{.x_label = "third of the lines by length (1: the shortest)",
              .y_label = "nats per character",
              .height = 280};
  for (const std::string norm : {"layernorm", "batchnorm"})
    add_lines(panel, norm, table.where("norm", norm), "third", "loss");
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment mixed_lengths() {
  return {.name = "mixed-lengths",
          .claim = "A mean over long and short sentences is dragged by the long ones.",
          .source = "explanations of why the Transformer has no BatchNorm",
          .literature =
              "Plausible in its direction: batch statistics of language vary more than those of "
              "images (Shen et al. 2020, arXiv 2003.07845).",
          .method =
              "Masked BatchNorm and LayerNorm, two Pre-LN layers with ALiBi, 800 steps of 64 "
              "lines (quick: 200 of 16). Evaluation with running statistics on each third of the "
              "held-out lines by length.",
          .rule =
              "Holds when in every seed BatchNorm's loss above LayerNorm's is more than 0.02 nats "
              "larger on the shortest third than on the longest; reversed when it is smaller by "
              "more. A run that diverged counts as infinitely bad.",
          .data = Data::lines,
          .measure = [](const Laboratory& lab) { return measure(lab, false); },
          .judge = [](const Table& table) { return judge(table, 1, 3); },
          .draw = draw};
}

Experiment overlong_lines() {
  return {.name = "overlong-lines",
          .claim = "On sentences longer than any of training BatchNorm does worse than LayerNorm.",
          .source = "explanations of why the Transformer has no BatchNorm",
          .literature = "Plausible; no measurement of it was found.",
          .method =
              "Masked BatchNorm and LayerNorm, two Pre-LN layers with ALiBi (which works on lines "
              "longer than those of training), 800 steps (quick: 200) on the shortest third of "
              "the lines. Evaluation with running statistics on each third of the held-out lines.",
          .rule =
              "Holds when in every seed BatchNorm's loss above LayerNorm's is more than 0.02 nats "
              "larger on the longest third than on the shortest; reversed when it is smaller by "
              "more. A run that diverged counts as infinitely bad.",
          .data = Data::lines,
          .measure = [](const Laboratory& lab) { return measure(lab, true); },
          .judge = [](const Table& table) { return judge(table, 3, 1); },
          .draw = draw};
}

}  // namespace tapeformer::lab
