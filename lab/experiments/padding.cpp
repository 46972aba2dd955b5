// What padding does to the statistics of a batch, and that a mask undoes it.
#include <algorithm>
#include <cmath>

#include "core/kernels.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"

namespace tapeformer::lab {

namespace {

const std::vector<std::string> norms = {"layernorm", "batchnorm", "batchnorm-unmasked"};

// Adds `extra` positions of padding to every row.
Tensor padded(const Tensor& ids, int64_t extra, int32_t fill) {
  const int64_t B = ids.dim(0), T = ids.dim(1);
  const Tensor result = Tensor::full({B, T + extra}, fill, DType::i32);
  for (int64_t b = 0; b < B; ++b)
    std::copy_n(ids.data<int32_t>() + b * T, T, result.data<int32_t>() + b * (T + extra));
  return result;
}

// The loss over validation batches, with the statistics of each and so much more padding.
double loss_with_padding(GPT& model, const LineCorpus& corpus, int64_t extra) {
  const Pause pause;
  const int64_t batches = corpus.validation_batches(10);
  double sum = 0, tokens = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const Batch batch = corpus.validation_batch(i, batches);
    const int32_t newline = batch.inputs.data<int32_t>()[0];  // which begins every line
    sum += batch.tokens * model
                              .loss(padded(batch.inputs, extra, newline),
                                    padded(batch.targets, extra, -1),
                                    {.lengths = batch.lengths, .batch_statistics = true})
                              .item();
    tokens += batch.tokens;
  }
  return sum / tokens;
}

// The norm of padded rows against that of the same tokens without padding: the largest difference.
double distance_from_packed(const std::string& norm, const Batch& batch, uint64_t seed) {
  constexpr int64_t C = 64;
  const int64_t B = batch.inputs.dim(0), T = batch.inputs.dim(1);
  const Tensor x = Tensor::empty({B, T, C}), packed = Tensor::empty({1, batch.tokens, C});
  kernels::fill_normal(x, 1, 1, RandomKey{.seed = seed, .purpose = Purpose::evaluation});
  const auto for_each_length = [&](auto&& f) {  // f(first number of the row, how many)
    for (int64_t b = 0; b < B; ++b) f(b * T * C, batch.lengths.data<int32_t>()[b] * C);
  };
  float* next = packed.data<float>();
  for_each_length(
      [&](int64_t at, int64_t n) { next = std::copy_n(x.data<float>() + at, n, next); });
  NormContext context;
  context.training = true;
  const Tensor of_packed = find_norm(norm)(C)->forward(packed, context);
  context.lengths = batch.lengths;
  const Tensor of_padded = find_norm(norm)(C)->forward(x, context);
  double distance = 0;
  const float* expected = of_packed.data<float>();
  for_each_length([&](int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      distance =
          std::max<double>(distance, std::abs(of_padded.data<float>()[at + i] - *expected++));
  });
  return distance;
}

Table measure(const Laboratory& lab) {
  struct Run {
    std::string norm;
    uint64_t seed;
    std::vector<double> losses = {};
    double distance = 0;
  };
  const std::vector<int64_t> extra = {0, 8, 16, 32};
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const std::string& norm : norms) runs.push_back({norm, seed});
  lab.for_each(runs.size(), [&](int64_t i) {
    Run& run = runs[i];
    const LineCorpus corpus = lab.lines(32, 32, run.seed);
    TransformerConfig config = lab.reference_of_lines(3, run.norm, "pre");
    config.context += extra.back();
    GPT model(config, run.seed);
    const Outcome outcome = train(model, corpus,
                                  {.model = config,
                                   .steps = lab.size<int64_t>(400, 150),
                                   .seed = run.seed,
                                   .validation_batches = 1});
    for (const int64_t more : extra)
      run.losses.push_back(outcome.diverged ? NAN : loss_with_padding(model, corpus, more));
    run.distance = distance_from_packed(run.norm, corpus.training_batch(0), run.seed);
    lab.log("padding: " + run.norm);
  });
  Table table({"norm", "seed", "extra", "loss", "distance"});
  for (const Run& run : runs)
    for (size_t i = 0; i < extra.size(); ++i)
      table.add({run.norm, double(run.seed), double(extra[i]), run.losses[i], run.distance});
  return table;
}

std::vector<double> rise(const Table& table, const std::string& norm) {
  const Table runs = table.where("norm", norm);
  return difference(runs.where("extra", 32.0).numbers("loss"),
                    runs.where("extra", 0.0).numbers("loss"));
}

Judgement judge(const Table& table) {
  Judgement judgement{
      judge_differences(difference(rise(table, "batchnorm-unmasked"), rise(table, "layernorm")),
                        0.02),
      {}};
  for (const std::string& norm : norms) {
    judgement.measured.push_back(
        {norm + ": loss rises with 32 more positions of padding by", rise(table, norm)});
    judgement.measured.push_back(
        {norm + ": largest distance of padded from packed rows",
         table.where("norm", norm).where("extra", 0.0).numbers("distance")});
  }
  return judgement;
}

Figure draw(const Table& table) {
  Figure figure{.title = "The same lines, padded further"};
  Panel panel{.x_label = "positions of padding added to every row",
              .y_label = "validation loss (nats per character)",
              .height = 280};
  for (const std::string& norm : norms)
    add_lines(panel, norm, table.where("norm", norm), "extra", "loss");
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment padding() {
  return {
      .name = "padding",
      .claim = "Padding corrupts batch statistics.",
      .source = "a common objection to BatchNorm for text",
      .literature =
          "True when padding is counted; with a mask it has no part in the statistics (follows "
          "from Ioffe & Szegedy 2015, algorithm 1, arXiv 1502.03167).",
      .expected = Verdict::holds,
      .method =
          "Three Pre-LN layers, 400 steps (quick: 150) of 32 lines of different length, with "
          "LayerNorm, BatchNorm that counts padding, and BatchNorm that masks it. Then the loss "
          "over 10 validation batches, with the statistics of each, its rows padded by 0 to 32 "
          "more positions. Besides, the norm of random padded rows against that of the same rows "
          "without padding.",
      .rule =
          "Holds when in every seed 32 more positions of padding raise the loss of BatchNorm "
          "without mask by more than 0.02 nats more than LayerNorm's; reversed when they always "
          "lower it by that much more; does not hold when it always lies between. A run that "
          "diverged leaves it undecided.",
      .data = Data::lines,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
