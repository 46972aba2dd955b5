// Gradient accumulation averages gradients, not batch statistics.
#include <cmath>

#include "lab/experiments/experiments.h"
#include "optim/parameters.h"

namespace tapeformer::lab {
namespace {

// All gradients of the model for `parts` micro-batches that together hold `rows` rows.
std::vector<float> gradients(GPT& model, const Corpus& corpus, int64_t parts) {
  Parameters parameters(model);
  parameters.zero_gradients();
  for (int64_t part = 0; part < parts; ++part) {
    const Batch batch = corpus.training_batch(0, part);
    Tape tape;
    tape.backward(model.loss(batch.inputs, batch.targets, {.training = true}), 1.0 / parts);
  }
  return parameters.gradients().to_vector<float>();
}

// |a - b| / |b|.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double distance = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance += (a[i] - b[i]) * (a[i] - b[i]);
    length += b[i] * b[i];
  }
  return std::sqrt(distance / length);
}

Table measure(const Laboratory& lab) {
  constexpr int64_t rows = 32;
  const int64_t context = lab.size(64, 16);
  Table table({"norm", "parts", "seed", "distance"});
  for (const std::string norm : {"layernorm", "batchnorm"}) {
    for (const uint64_t seed : lab.seeds()) {
      GPT model(lab.reference(2, norm, "pre"), seed);
      const auto whole = gradients(model, lab.text(rows, context, seed), 1);
      for (const int64_t parts : {2, 4, 8, 16}) {
        const auto accumulated = gradients(model, lab.text(rows / parts, context, seed), parts);
        table.add({norm, double(parts), double(seed), relative_distance(accumulated, whole)});
      }
    }
  }
  return table;
}

Judgement judge(const Table& table) {
  const auto distances = [&](const char* norm) {
    return table.where("norm", norm).where("parts", 4.0).numbers("distance");
  };
  const auto layer = distances("layernorm"), batch = distances("batchnorm");
  // Steadied means: the same gradient as one large batch, as LayerNorm shows it is up to rounding.
  const Verdict differs = judge_differences(difference(batch, layer), 0.01);
  const Verdict verdict = differs == Verdict::holds           ? Verdict::does_not_hold
                          : differs == Verdict::does_not_hold ? Verdict::holds
                                                              : Verdict::not_decidable;
  return {verdict,
          {{"LayerNorm: distance of 4 x 8 from 1 x 32, relative", layer},
           {"BatchNorm: distance of 4 x 8 from 1 x 32, relative", batch}}};
}

Figure draw(const Table& table) {
  Figure figure{.title = "Gradient of accumulated micro-batches against one batch of 32"};
  Panel panel{.x_label = "micro-batches",
              .y_label = "relative distance",
              .y_scale = Scale::log10,
              .height = 260};
  for (const std::string norm : {"layernorm", "batchnorm"}) {
    Line line{.label = norm, .markers = true};
    for (const Cell& parts : table.distinct("parts")) {
      line.x.push_back(std::get<double>(parts));
      line.y.push_back(
          spread(table.where("norm", norm).where("parts", parts).numbers("distance")).mean);
    }
    panel.lines.push_back(line);
  }
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment accumulation() {
  return {
      .name = "accumulation",
      .claim = "Accumulating gradients to a batch of 128 steadies BatchNorm like a batch of 128.",
      .source = "a common piece of advice",
      .literature =
          "False: the statistics are those of each micro-batch (follows from Ioffe & "
          "Szegedy 2015, algorithm 1, arXiv 1502.03167).",
      .expected = Verdict::does_not_hold,
      .method =
          "Gradient of all weights on the same 32 windows of 64 characters (quick: 16), as one "
          "batch "
          "and as 2 to 16 accumulated parts, at initialisation; two Pre-LN layers, with LayerNorm "
          "and with BatchNorm. Relative distance: |accumulated - whole| / |whole|.",
      .rule =
          "Does not hold when in every seed BatchNorm's relative distance between 4 x 8 and "
          "1 x 32 exceeds LayerNorm's by more than 0.01; holds when the two always lie within 0.01 "
          "of each other.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
