// A recipe for BatchNorm in a translator as a whole: what it gives, and what it takes.
#include <cmath>
#include <functional>

#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "lab/experiments/translation.h"

namespace tapeformer::lab {
namespace {

const std::vector<std::string> designs = {"LayerNorm", "LayerNorm in the recipe's batches",
                                          "BatchNorm by the recipe"};

Table measure(const Laboratory& lab) {
  const TranslationLaboratory translation(lab);
  const int64_t usual_steps = lab.size(2000, 200), rows = lab.size(128, 64);
  const PairOptions usual = translation.reference("", "", usual_steps, 1).batches;
  PairOptions fixed = usual;
  fixed.fixed_length = true;
  fixed.batch_tokens = rows * fixed.longest;
  // As many sentences as the usual batches hold.
  const double sentences = static_cast<double>(usual_steps) * translation.pairs_in_a_batch(usual);
  const int64_t steps = std::llround(sentences / static_cast<double>(rows));
  std::vector<TranslatorRun> runs;
  for (const uint64_t seed : lab.seeds())
    for (size_t i = 0; i < designs.size(); ++i) {
      TranslatorTrial trial = translation.reference(i == 2 ? "batchnorm" : "layernorm", "",
                                                    i == 0 ? usual_steps : steps, seed);
      if (i > 0) trial.batches = fixed;
      runs.push_back({{designs[i], double(seed)}, trial});
    }
  return train_translators(lab, translation, {"design", "seed"}, runs);
}

std::vector<double> ratio(const std::vector<double>& a, const std::vector<double>& b) {
  return seed_by_seed(a, b, std::divides<>());
}

// The rule for "every one is at least `bound`".
Verdict judge_at_least(std::vector<double> values, double bound) {
  for (double& value : values) value = value >= bound ? 1 : -1;
  const Verdict verdict = judge_differences(values, 0);
  return verdict == Verdict::reversed ? Verdict::does_not_hold : verdict;
}

Judgement judge(const Table& table) {
  const auto of = [&](size_t design) { return table.where("design", designs[design]); };
  const auto seconds = [&](size_t design) { return of(design).numbers("seconds"); };
  const auto kept = ratio(bleus(of(2)), bleus(of(0)));
  const auto speed = ratio(seconds(0), seconds(2));
  const Verdict good = judge_at_least(kept, 0.95), quick = judge_at_least(speed, 1 / 1.2);
  Judgement result{
      both(good, quick),
      {{"BLEU by the recipe / of LayerNorm", kept},
       {"time by the recipe / of LayerNorm", ratio(seconds(2), seconds(0))},
       {"time by the recipe / of LayerNorm in the same batches", ratio(seconds(2), seconds(1))}},
      std::string("The two parts: at least 95 % of the BLEU (") + name_of(good) +
          "); at most 20 % more time (" + name_of(quick) + ")."};
  for (size_t i = 0; i < designs.size(); ++i) {
    result.measured.push_back({designs[i] + ": BLEU", bleus(of(i))});
    result.measured.push_back({designs[i] + ": validation loss, nats per token", losses(of(i))});
    result.measured.push_back({designs[i] + ": seconds of training on one core", seconds(i)});
  }
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "A recipe for BatchNorm in a translator: BLEU by the time it takes"};
  Panel panel{.x_label = "seconds of training on one core",
              .y_label = "BLEU (greedy, lower case)",
              .height = 260};
  for (size_t i = 0; i < designs.size(); ++i) {
    const Table runs = table.where("design", designs[i]);
    const auto seconds = runs.numbers("seconds"), bleu = bleus(runs);
    for (size_t run = 0; run < bleu.size(); ++run)  // a point for each
      panel.lines.push_back({.label = run == 0 ? designs[i] : "",
                             .x = {seconds[run]},
                             .y = {bleu[run]},
                             .style = static_cast<int>(i),
                             .markers = true});
  }
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment translation_recipe() {
  return {
      .name = "translation-recipe",
      .claim =
          "With a fixed length, large batches and the norm before the sub-layer BatchNorm reaches "
          "95 % of LayerNorm's BLEU for 20 % more time.",
      .source = "said in comparisons of norms, without a source",
      .literature =
          "The share of the BLEU is near the pairs that Shen et al. 2020 (arXiv 2003.07845) "
          "publish; no source was found for the time.",
      .method =
          std::string(
              "LayerNorm in the usual batches, 2,000 steps (quick: 200); and as many "
              "sentences in batches of 128 (quick: 64), each padded to 40 tokens, with LayerNorm "
              "and with "
              "masked BatchNorm in the encoder. The time is what the processor computed in "
              "training, without the evaluation. BLEU of greedy translations of the validation "
              "sentences, in lower case. ") +
          translation_setting,
      .rule =
          "Holds when in every seed the recipe's BLEU is at least 0.95 of LayerNorm's and its time "
          "at most 1.2 of it. Does not hold when one of the two always fails. A run that diverged "
          "has a BLEU of 0.",
      .data = Data::pairs,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
