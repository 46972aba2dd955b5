// BatchNorm computes something else in use than in training.
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "train/batch_statistics.h"
#include "train/evaluation.h"

namespace tapeformer::lab {
namespace {

constexpr int64_t batch = 16, recalibration_batches = 64, evaluation_batches = 20;

// The distances of the statistics, averaged over some batches, by norm from bottom to top.
std::vector<double> distances(GPT& model, const Corpus& corpus) {
  constexpr int64_t count = 16;
  std::vector<double> mean;
  for (int64_t i = 0; i < count; ++i) {
    const auto tid = statistics_distance(model, corpus.validation_batch(i, count));
    mean.resize(tid.size());
    for (size_t j = 0; j < tid.size(); ++j) mean[j] += tid[j].value / count;
  }
  return mean;
}

// The rows of one trained model: one for each norm, with what belongs to the model repeated; a
// single one where no norm keeps statistics.
std::vector<std::vector<Cell>> look(const Laboratory& lab, const std::string& norm, uint64_t seed) {
  const Trial trial{.model = lab.reference(lab.size(4, 2), norm, "pre"),
                    .batch = batch,
                    .steps = lab.size(400, 150),
                    .seed = seed,
                    .validation_batches = 1};
  const Outcome outcome = lab.train_on_text(trial);
  const TextCorpus corpus = lab.text(batch, 64, seed);
  GPT& model = *outcome.model;
  std::vector<double> tid{0};
  StatisticsLosses losses;
  if (has_running_statistics(model)) {
    tid = distances(model, corpus);
    losses = compare_statistics(model, corpus, recalibration_batches, evaluation_batches);
  } else {
    losses.running = losses.recalibrated = evaluate(model, corpus, evaluation_batches);
    losses.batch = evaluate(model, corpus, evaluation_batches, true);
  }
  std::vector<std::vector<Cell>> rows;
  for (size_t i = 0; i < tid.size(); ++i)
    rows.push_back({norm, double(seed), double(i + 1), tid[i], losses.running, losses.batch,
                    losses.recalibrated});
  lab.log("statistics-gap: " + norm + ", seed " + std::to_string(seed));
  return rows;
}

Table measure(const Laboratory& lab) {
  struct Setting {
    std::string norm;
    uint64_t seed;
  };
  std::vector<Setting> settings;
  for (const std::string norm : {"batchnorm", "layernorm"})
    for (const uint64_t seed : lab.seeds()) settings.push_back({norm, seed});
  std::vector<std::vector<std::vector<Cell>>> rows(settings.size());
  lab.for_each(settings.size(),
               [&](int64_t i) { rows[i] = look(lab, settings[i].norm, settings[i].seed); });
  Table table({"norm", "seed", "position", "tid", "running", "batch", "recalibrated"});
  for (const auto& of_model : rows)
    for (const auto& row : of_model) table.add(row);
  return table;
}

Judgement judge(const Table& table) {
  const auto of = [&](const char* norm, const char* column) {
    return losses(table.where("norm", norm).where("position", 1.0), column);
  };
  const auto batchnorm = difference(of("batchnorm", "running"), of("batchnorm", "batch"));
  const auto layernorm = difference(of("layernorm", "running"), of("layernorm", "batch"));
  std::vector<double> tid;
  for (const Cell& seed : table.distinct("seed"))
    tid.push_back(spread(table.where("norm", "batchnorm").where("seed", seed).numbers("tid")).mean);
  return {judge_differences(difference(batchnorm, layernorm), 0.02),
          {{"BatchNorm: loss with running statistics, nats", of("batchnorm", "running")},
           {"BatchNorm: loss with the batch's statistics, nats", of("batchnorm", "batch")},
           {"BatchNorm: loss with recalibrated statistics, nats", of("batchnorm", "recalibrated")},
           {"BatchNorm: TID, mean of all norms", tid},
           {"LayerNorm: loss, nats", of("layernorm", "running")},
           {"LayerNorm: loss in training mode, nats", of("layernorm", "batch")}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "Training and use: BatchNorm's statistics after training"};
  Panel panel{.x_label = "norm, counted from the bottom",
              .y_label = "TID, standard deviations",
              .height = 240};
  add_line(panel, table.where("norm", "batchnorm"), "position", "tid",
           "|running mean - mean of the batch|");
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment statistics_gap() {
  return {.name = "statistics-gap",
          .claim = "BatchNorm differs between training and inference.",
          .source = "Wang et al. 2022 (arXiv 2210.05153)",
          .literature =
              "True; Wang et al. 2022 take the distance (TID) for the main cause of BatchNorm's "
              "failure in language models.",
          .expected = Verdict::holds,
          .method =
              "Four Pre-LN layers, 400 steps of 16 rows. The same weights on the same held-out "
              "text, with running statistics (momentum 0.1), with those of each batch, and with "
              "running statistics averaged anew over 64 batches. TID: the distance of running and "
              "batch mean in standard deviations of the batch, averaged over the channels.",
          .rule =
              "Holds when in every seed BatchNorm's loss with running statistics lies more than "
              "0.02 nats above that with the batch's, by more than LayerNorm's two modes differ; "
              "reversed when it lies below. A run that diverged counts as infinitely bad.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
