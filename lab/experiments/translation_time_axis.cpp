// What a norm along the time axis costs a translator, and whether its loss tells.
#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "lab/experiments/translation.h"

namespace tapeformer::lab {
namespace {

const std::vector<std::string> designs = {"over features", "over time in the encoder",
                                          "over time in the decoder"};

Table measure(const Laboratory& lab) {
  const TranslationLaboratory translation(lab);
  const auto norm = [&](size_t design, size_t where) {
    return design == where ? "layernorm-time" : "layernorm";
  };
  std::vector<TranslatorRun> runs;
  for (const uint64_t seed : lab.seeds())
    for (size_t i = 0; i < designs.size(); ++i) {
      TranslatorTrial trial =
          translation.reference(norm(i, 1), norm(i, 2), lab.size(2000, 200), seed);
      trial.evaluations = 2;
      runs.push_back({{designs[i], double(seed)}, trial});
    }
  return train_translators(lab, translation, {"design", "seed"}, runs);
}

Judgement judge(const Table& table) {
  const Table ends = at_the_end(table);
  const auto of = [&](size_t design) { return ends.where("design", designs[design]); };
  const auto below = difference(bleus(of(0)), bleus(of(2)));
  std::vector<double> nearer;  // than 0.05 nats to the loss of the norm over features, or below it
  for (const double worse : difference(losses(of(2)), losses(of(0))))
    nearer.push_back(0.05 - worse);
  const Verdict hurts = judge_differences(below, 2), hidden = judge_differences(nearer, 0);
  Judgement result{
      both(hurts, hidden),
      {{"in the decoder: BLEU below the norm over features", below},
       {"in the encoder: BLEU below the norm over features",
        difference(bleus(of(0)), bleus(of(1)))}},
      std::string("The two parts, of the decoder: over time costs more than 2 BLEU (") +
          name_of(hurts) + "); the loss does not tell (" + name_of(hidden) + ")."};
  for (size_t i = 0; i < designs.size(); ++i) {
    result.measured.push_back({designs[i] + ": BLEU", bleus(of(i))});
    result.measured.push_back(
        {designs[i] + ": validation loss, teacher-forced, nats per token", losses(of(i))});
  }
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Translators with layer norm over features and over time"};
  for (const auto& [column, label] :
       {std::pair{"bleu", "BLEU (greedy, lower case)"},
        std::pair{"loss", "validation loss, teacher-forced (nats per token)"}}) {
    Panel panel{.x_label = "training step", .y_label = label, .height = 200};
    for (const std::string& design : designs)
      add_lines(panel, design, table.where("design", design), "step", column);
    figure.add(panel);
  }
  return figure;
}

}  // namespace

Experiment translation_time_axis() {
  return {
      .name = "translation-time-axis",
      .claim =
          "A norm along the time axis ruins a translator, and its validation loss does not tell.",
      .source = "a warning about a common mistake, layer norm over the wrong axis",
      .literature =
          "Follows from the definition for the decoder, whose statistics over time show a token "
          "what "
          "comes after it: teacher forcing has that to show, translating has not. The encoder may "
          "see all of its sentence.",
      .expected = Verdict::holds,
      .method =
          std::string(
              "An encoder-decoder with layer norm over the features, with layer norm over time "
              "in the encoder, and with it in the decoder, 2,000 steps (quick: 200). BLEU of "
              "greedy translations of the validation sentences, in lower case. ") +
          translation_setting,
      .rule =
          "Holds when in every seed the norm over time in the decoder costs more than 2 BLEU and "
          "its "
          "validation loss is less than 0.05 nats above that of the norm over features. Does not "
          "hold when one of the two always fails. A run that diverged has a BLEU of 0 and an "
          "infinite "
          "loss.",
      .data = Data::pairs,
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
