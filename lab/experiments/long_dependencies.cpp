// LayerNorm helps long dependencies, it is said: a symbol is to be repeated after a distance.
#include <cmath>
#include <limits>

#include "core/random.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "train/evaluation.h"

namespace tapeformer::lab {
namespace {

constexpr int64_t symbols = 16, fillers = 16;

// Rows of random fillers with one symbol among them, and a mark at the end, after which the symbol
// is to be predicted: that alone counts. Between them are `shortest` ... `longest` fillers.
class CopyCorpus : public Corpus {
 public:
  CopyCorpus(const BatchOptions& options, int64_t shortest, int64_t longest)
      : Corpus(options), shortest_(shortest), longest_(longest) {}

  static int64_t vocabulary() { return symbols + fillers + 1; }
  Batch training_batch(int64_t step, int64_t micro_batch) const override {
    Generator random({options_.seed, Purpose::batches, uint32_t(step), uint32_t(micro_batch)});
    return make(random, options_.rows);
  }
  int64_t training_tokens() const override { return options_.rows * options_.context; }
  int64_t validation_tokens() const override { return validation_examples(); }
  int64_t validation_examples() const override { return 128; }

 private:
  Batch validation_rows(const std::vector<int64_t>& examples) const override {
    Generator random({options_.seed, Purpose::evaluation, uint32_t(examples[0]), 0});
    return make(random, int64_t(examples.size()));
  }
  Batch make(Generator& random, int64_t rows) const {
    const int64_t T = options_.context, last = T - 1;
    Batch batch{
        Tensor::empty({rows, T}, DType::i32), Tensor::full({rows, T}, -1, DType::i32), {}, rows};
    for (int64_t row = 0; row < rows; ++row) {
      int32_t* const inputs = batch.inputs.data<int32_t>() + row * T;
      for (int64_t t = 0; t < last; ++t) inputs[t] = int32_t(symbols + random.below(fillers));
      inputs[last] = symbols + fillers;
      const auto distance = shortest_ + random.below(uint32_t(longest_ - shortest_ + 1));
      const auto symbol = int32_t(random.below(symbols));
      inputs[last - 1 - distance] = symbol;
      batch.targets.data<int32_t>()[row * T + last] = symbol;
    }
    return batch;
  }
  int64_t shortest_, longest_;
};

// Loss by distance after training, and its mean over the course of training.
struct Result {
  std::vector<double> course, loss;
};

Result run(const Laboratory& lab, const std::vector<int64_t>& distances, const std::string& norm,
           uint64_t seed) {
  const int64_t context = distances.back() + 2, steps = lab.size(600, 200), interval = steps / 20;
  Trial trial{.model = lab.reference(2, norm, "pre"), .steps = steps, .seed = seed};
  trial.model.vocabulary = CopyCorpus::vocabulary();
  trial.model.context = context;
  std::vector<CopyCorpus> held_out;
  for (const int64_t distance : distances)
    held_out.emplace_back(BatchOptions{.rows = 128, .context = context}, distance, distance);
  Result result{std::vector<double>(distances.size()), std::vector<double>(distances.size())};
  trial.after_step = [&](int64_t step, GPT& model) {
    if (step % interval) return;
    for (size_t i = 0; i < distances.size(); ++i) {
      result.loss[i] = evaluate(model, held_out[i]);
      result.course[i] += result.loss[i] * interval / steps;
    }
  };
  GPT model(trial.model, seed);
  const CopyCorpus corpus({.rows = trial.batch, .context = context, .seed = seed}, 1,
                          distances.back());
  if (train(model, corpus, trial).diverged)
    result.course.assign(distances.size(), std::numeric_limits<double>::infinity());
  lab.log("long-dependencies: " + norm + ", seed " + std::to_string(seed));
  return result;
}

Table measure(const Laboratory& lab) {
  const auto distances =
      lab.quick() ? std::vector<int64_t>{4, 32} : std::vector<int64_t>{4, 16, 64, 128};
  struct Setting {
    std::string norm;
    uint64_t seed;
  };
  std::vector<Setting> settings;
  for (const uint64_t seed : lab.seeds())
    for (const std::string norm : {"layernorm", "batchnorm", "none"})
      settings.push_back({norm, seed});
  std::vector<Result> results(settings.size());
  lab.for_each(settings.size(), [&](int64_t i) {
    results[i] = run(lab, distances, settings[i].norm, settings[i].seed);
  });
  Table table({"norm", "seed", "distance", "course", "loss"});
  for (size_t i = 0; i < settings.size(); ++i)
    for (size_t j = 0; j < distances.size(); ++j)
      table.add({settings[i].norm, double(settings[i].seed), double(distances[j]),
                 results[i].course[j], results[i].loss[j]});
  return table;
}

Judgement judge(const Table& table) {
  const auto distances = table.distinct("distance");
  const auto of = [&](const char* norm, const Cell& distance) {
    return losses(table.where("norm", norm).where("distance", distance), "course");
  };
  // By how much LayerNorm is better than the better of the two others, seed by seed.
  const auto advantage = [&](const Cell& distance) {
    const auto best = smaller(of("none", distance), of("batchnorm", distance));
    return difference(best, of("layernorm", distance));
  };
  Judgement result{
      judge_differences(difference(advantage(distances.back()), advantage(distances.front())), 0.1),
      {}};
  for (const Cell& distance : distances)
    for (const char* norm : {"layernorm", "batchnorm", "none"})
      result.measured.push_back({std::string(norm) + ", distance " + to_text(distance) +
                                     ": mean loss over the training, nats",
                                 of(norm, distance)});
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "A symbol to be repeated after a distance"};
  const Level guessing{"guessing", std::log(double(symbols))};
  Panel course{.title = "Loss of the repeated symbol, averaged over the whole training",
               .x_label = "distance, tokens",
               .y_label = "nats",
               .levels = {guessing},
               .height = 220};
  Panel loss{.title = "The same after training",
             .x_label = "distance, tokens",
             .y_label = "nats",
             .levels = {guessing},
             .height = 220};
  for (const std::string norm : {"layernorm", "batchnorm", "none"}) {
    add_lines(course, norm, table.where("norm", norm), "distance", "course");
    add_lines(loss, norm, table.where("norm", norm), "distance", "loss");
  }
  figure.add(course);
  figure.add(loss);
  return figure;
}

}  // namespace

Experiment long_dependencies() {
  return {
      .name = "long-dependencies",
      .claim = "LayerNorm helps long dependencies.",
      .source = "explanations of LayerNorm",
      .literature = "Open: no measurement of it was found.",
      .method =
          "Rows of 130 tokens: random fillers, among them one of 16 symbols, 1 to 128 tokens "
          "before the end, and a mark, after which the symbol is to be predicted; nothing else "
          "counts. Two layers (pre) with LayerNorm, BatchNorm and none, 600 steps of 16 rows. "
          "Every 30 steps the loss on held-out rows with distances of 4 to 128 (quick: rows of 34 "
          "tokens, distances of 4 and 32, 200 steps, looked at every 10); its mean over the "
          "training tells how soon a distance is mastered.",
      .rule =
          "Holds when in every seed LayerNorm's advantage over the better of BatchNorm and none, "
          "in this mean, is larger by more than 0.1 nats at the longest distance than at the "
          "shortest; reversed when it is smaller by more. A run that diverged counts as "
          "infinitely bad.",
      .data = Data::random,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
