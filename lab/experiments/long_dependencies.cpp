// LayerNorm helps long dependencies, it is said: a symbol is to be repeated after a distance.
#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"

namespace tapeformer::lab {
namespace {

constexpr int64_t symbols = 16, fillers = 16;

// Rows of one symbol, `distance` fillers and a mark; what follows the mark is the symbol. Only that
// prediction counts.
class CopyCorpus : public Corpus {
 public:
  CopyCorpus(int64_t rows, int64_t distance, uint64_t seed)
      : Corpus({.rows = rows, .seed = seed}), distance_(distance) {}

  static int64_t vocabulary() { return symbols + fillers + 1; }
  int64_t context() const { return distance_ + 2; }
  Batch training_batch(int64_t step, int64_t micro_batch) const override {
    Generator random({options_.seed, Purpose::batches, uint32_t(step), uint32_t(micro_batch)});
    return make(random, options_.rows);
  }
  int64_t training_tokens() const override { return 1 << 20; }
  int64_t validation_tokens() const override { return validation_examples(); }
  int64_t validation_examples() const override { return 512; }

 private:
  Batch validation_rows(const std::vector<int64_t>& examples) const override {
    Generator random({options_.seed, Purpose::evaluation, uint32_t(examples[0]), 0});
    return make(random, int64_t(examples.size()));
  }
  Batch make(Generator& random, int64_t rows) const {
    const int64_t T = context();
    Batch batch{
        Tensor::empty({rows, T}, DType::i32), Tensor::full({rows, T}, -1, DType::i32), {}, rows};
    for (int64_t row = 0; row < rows; ++row) {
      int32_t* const inputs = batch.inputs.data<int32_t>() + row * T;
      inputs[0] = int32_t(random.below(symbols));
      for (int64_t t = 1; t <= distance_; ++t) inputs[t] = int32_t(symbols + random.below(fillers));
      inputs[T - 1] = symbols + fillers;
      batch.targets.data<int32_t>()[row * T + T - 1] = inputs[0];
    }
    return batch;
  }
  int64_t distance_;
};

Table measure(const Laboratory& lab) {
  const auto distances =
      lab.quick() ? std::vector<int64_t>{4, 32} : std::vector<int64_t>{4, 16, 64, 128};
  const std::vector<std::string> columns{"norm", "distance", "seed"};
  std::vector<std::vector<Cell>> rows;
  for (const uint64_t seed : lab.seeds())
    for (const int64_t distance : distances)
      for (const std::string norm : {"layernorm", "batchnorm", "none"})
        rows.push_back({norm, double(distance), double(seed)});
  lab.for_each(rows.size(), [&](int64_t i) {
    const std::vector<Cell> cells = rows[i];
    const auto seed = uint64_t(std::get<double>(cells[2]));
    const CopyCorpus corpus(32, int64_t(std::get<double>(cells[1])), seed);
    Trial trial{.model = lab.reference(2, std::get<std::string>(cells[0]), "pre"),
                .steps = lab.size(400, 150),
                .seed = seed};
    trial.model.vocabulary = CopyCorpus::vocabulary();
    trial.model.context = corpus.context();
    GPT model(trial.model, seed);
    const Outcome outcome = train(model, corpus, trial);
    rows[i].insert(rows[i].end(), {spread(outcome.losses).mean, outcome.validation_loss,
                                   double(outcome.diverged)});
    lab.log(to_text(columns, cells));
  });
  Table table({"norm", "distance", "seed", "course", "loss", "diverged"});
  for (const auto& row : rows) table.add(row);
  return table;
}

Judgement judge(const Table& table) {
  const auto distances = table.distinct("distance");
  const auto of = [&](const char* norm, const Cell& distance) {
    return losses(table.where("norm", norm).where("distance", distance));
  };
  // By how much LayerNorm is better than the better of the two others, seed by seed.
  const auto advantage = [&](const Cell& distance) {
    auto best = of("none", distance);
    const auto batchnorm = of("batchnorm", distance);
    for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], batchnorm[i]);
    return difference(best, of("layernorm", distance));
  };
  Judgement result{
      judge_differences(difference(advantage(distances.back()), advantage(distances.front())), 0.1),
      {}};
  for (const Cell& distance : distances)
    for (const char* norm : {"layernorm", "batchnorm", "none"})
      result.measured.push_back(
          {std::string(norm) + ", distance " + to_text(distance) + ": loss of the copy, nats",
           of(norm, distance)});
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "A symbol to be repeated after a distance"};
  Panel loss{.title = "Loss of the repeated symbol at the end",
             .x_label = "distance, tokens",
             .y_label = "nats",
             .levels = {{"guessing", std::log(double(symbols))}},
             .height = 220};
  Panel course{.title = "The same, averaged over the whole training",
               .x_label = "distance, tokens",
               .y_label = "nats",
               .levels = {{"guessing", std::log(double(symbols))}},
               .height = 220};
  for (const std::string norm : {"layernorm", "batchnorm", "none"}) {
    add_line(loss, table.where("norm", norm), "distance", "loss", norm);
    add_line(course, table.where("norm", norm), "distance", "course", norm);
  }
  figure.add(loss);
  figure.add(course);
  return figure;
}

}  // namespace

Experiment long_dependencies() {
  return {.name = "long-dependencies",
          .claim = "LayerNorm helps long dependencies.",
          .source = "explanations of LayerNorm",
          .literature = "Open: no measurement of it was found.",
          .method =
              "Rows of one of 16 symbols, 4 to 128 random fillers and a mark, after which the "
              "symbol is to be predicted; nothing else counts. Two layers (pre) with LayerNorm, "
              "BatchNorm and none, a model for each distance, 400 steps of 32 rows.",
          .rule =
              "Holds when in every seed LayerNorm's advantage over the better of BatchNorm and "
              "none, in nats, is larger by more than 0.1 at the longest distance than at the "
              "shortest; reversed when it is smaller by more. A run that diverged counts as "
              "infinitely bad.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
