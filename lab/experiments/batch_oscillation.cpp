// Batches under 32 make BatchNorm's loss oscillate and slow it down, it is said.
#include <algorithm>
#include <cmath>
#include <functional>

#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "train/evaluation.h"
#include "train/format.h"

namespace tapeformer::lab {
namespace {

// Standard deviation of the losses of the second half around their running mean of 25 steps.
double oscillation(const std::vector<double>& all) {
  constexpr size_t reach = 12;
  std::vector<double> rest;
  for (size_t i = std::max(all.size() / 2, reach); i + reach < all.size(); ++i)
    rest.push_back(all[i] -
                   spread({all.begin() + (i - reach), all.begin() + (i + reach + 1)}).mean);
  return spread(rest).deviation;
}

// The step at which the curve, taken every `interval` steps, first reaches `level`; infinite when
// it never does.
double steps_to(double level, const std::vector<double>& curve, int64_t interval) {
  for (size_t i = 1; i < curve.size(); ++i)
    if (curve[i] <= level)
      return interval * (i + (curve[i - 1] - level) / (curve[i - 1] - curve[i]));
  return std::numeric_limits<double>::infinity();
}

Table measure(const Laboratory& lab) {
  constexpr int64_t interval = 10;
  const auto batches =
      lab.quick() ? std::vector<int64_t>{8, 32} : std::vector<int64_t>{8, 16, 32, 64};
  const std::vector<std::string> columns{"norm", "batch", "seed"};
  std::vector<std::vector<Cell>> cells;
  for (const uint64_t seed : lab.seeds())
    for (const int64_t batch : batches)
      for (const std::string norm : {"layernorm", "batchnorm"})
        cells.push_back({norm, double(batch), double(seed)});
  std::vector<std::vector<Cell>> rows = cells;
  lab.for_each(rows.size(), [&](int64_t i) {
    const TextCorpus held_out = lab.text(64, 64, 1);
    std::vector<double> curve;
    const Trial trial{.model = lab.reference(2, std::get<std::string>(cells[i][0]), "pre"),
                      .batch = int64_t(std::get<double>(cells[i][1])),
                      .steps = lab.size(400, 150),
                      .seed = uint64_t(std::get<double>(cells[i][2])),
                      .validation_batches = 1,
                      .after_step = [&](int64_t step, GPT& model) {
                        if (step % interval == 0) curve.push_back(evaluate(model, held_out, 2));
                      }};
    const Outcome outcome = lab.train_on_text(trial);
    const double level = 0.85 * unigram_entropy(held_out);
    rows[i].insert(rows[i].end(), {oscillation(outcome.losses), steps_to(level, curve, interval),
                                   curve.empty() ? NAN : curve.back(), double(outcome.diverged)});
    lab.log(to_text(columns, cells[i]));
  });
  Table table({"norm", "batch", "seed", "oscillation", "steps", "loss", "diverged"});
  for (const auto& row : rows) table.add(row);
  return table;
}

// One column of the runs of a norm and batch size. No number where the run diverged, whatever it
// had reached before, nor where it never reached the level: neither decides anything.
std::vector<double> column_of(const Table& table, const std::string& norm, const Cell& batch,
                              const char* column) {
  const Table runs = table.where("norm", norm).where("batch", batch);
  std::vector<double> values = runs.numbers(column);
  const auto diverged = runs.numbers("diverged");
  for (size_t i = 0; i < values.size(); ++i)
    if (diverged[i] != 0 || !std::isfinite(values[i])) values[i] = NAN;
  return values;
}

// How many times larger a number is with small batches (16, or the smallest below 32) than with 32:
// BatchNorm's factor in units of LayerNorm's, less 1, seed by seed.
std::vector<double> excess(const Table& table, const char* column) {
  const auto of = [&](const char* norm, const Cell& batch) {
    return column_of(table, norm, batch, column);
  };
  const auto batches = table.distinct("batch");
  const Cell small =
      std::ranges::find(batches, Cell(16.0)) != batches.end() ? Cell(16.0) : batches.front();
  const auto factor = [&](const char* norm) {
    return seed_by_seed(of(norm, small), of(norm, 32.0), std::divides());
  };
  return seed_by_seed(factor("batchnorm"), factor("layernorm"),
                      [](double b, double l) { return b / l - 1; });
}

// BatchNorm's steps over LayerNorm's, the mean of the seeds at each batch size.
std::string remark_on_steps(const Table& table) {
  std::string factors;
  for (const Cell& batch : table.distinct("batch")) {
    const double b = spread(column_of(table, "batchnorm", batch, "steps")).mean;
    const double l = spread(column_of(table, "layernorm", batch, "steps")).mean;
    factors += (factors.empty() ? "" : ", ") + fixed(b / l, 2) + " (" + to_text(batch) + " rows)";
  }
  return "The claim is about what small batches add. At one and the same batch size BatchNorm took "
         "so many times LayerNorm's steps: " +
         factors + ".";
}

Judgement judge(const Table& table) {
  const auto oscillates = excess(table, "oscillation"), slower = excess(table, "steps");
  Judgement result{both(judge_differences(oscillates, 0.1), judge_differences(slower, 0.15)),
                   {{"oscillation: BatchNorm's factor over LayerNorm's, less 1", oscillates},
                    {"steps: BatchNorm's factor over LayerNorm's, less 1", slower}},
                   remark_on_steps(table)};
  for (const Cell& batch : table.distinct("batch"))
    for (const char* norm : {"layernorm", "batchnorm"}) {
      const std::string name = std::string(norm) + ", " + to_text(batch) + " rows: ";
      result.measured.push_back(
          {name + "oscillation, nats", column_of(table, norm, batch, "oscillation")});
      result.measured.push_back(
          {name + "steps to the fixed loss", column_of(table, norm, batch, "steps")});
    }
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Small batches: how much the loss oscillates, how fast it falls"};
  Panel oscillates{.title = "Standard deviation of the training loss around its trend",
                   .x_label = "log2 of the rows per batch",
                   .y_label = "nats per character",
                   .height = 200};
  Panel steps{.title = "Steps until the held-out loss is 85 % of the characters' entropy",
              .x_label = "log2 of the rows per batch",
              .y_label = "steps",
              .height = 200};
  for (const std::string norm : {"layernorm", "batchnorm"}) {
    const Table runs = with_log2(table.where("norm", norm), "batch");
    add_lines(oscillates, norm, runs, "log2", "oscillation");
    add_lines(steps, norm, runs, "log2", "steps");
  }
  figure.add(oscillates);
  figure.add(steps);
  return figure;
}

}  // namespace

Experiment batch_oscillation() {
  return {
      .name = "batch-oscillation",
      .claim = "Batches under 32 make BatchNorm's loss oscillate, and it converges 30 % slower.",
      .source = "no source found",
      .literature =
          "Smaller batches make the statistics noisier (Wu & He 2018, arXiv 1803.08494); for the "
          "30 % no source was found.",
      .method =
          "Two Pre-LN layers, both norms, batches of 8 to 64 rows (quick: 8 and 32), 400 steps "
          "(quick: 150). Oscillation: the standard deviation of the training loss around its "
          "running mean of 25 steps, second half. Speed: steps until the held-out loss (every 10 "
          "steps, running statistics) is 85 % of the entropy of the characters' frequencies. "
          "Smaller batches are noisier under any norm, so LayerNorm's factor is divided out.",
      .rule =
          "Holds when from 32 to 16 rows, in every seed, BatchNorm's oscillation grows more than "
          "10 % more than LayerNorm's, and its steps more than 15 % (half of what is claimed). A "
          "run that diverged, or a level that is never reached, decides nothing.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
