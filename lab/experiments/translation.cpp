#include "lab/experiments/translation.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "lab/experiments/training.h"
#include "optim/schedule.h"
#include "train/trainer.h"

namespace tapeformer::lab {
namespace {

// Time that this thread computed: what other runs take at the same time does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

const char* const translation_setting =
    "Setting: Pre-LN, two encoder and two decoder layers of 64 channels (quick: one of each), 4 "
    "heads, dropout 0.1, byte-pair encoding of 2,000 merges (quick: 200) in lower case, sentences "
    "of up to 39 tokens, batches of about 1,024 tokens (quick: 512) on a side with sentences of "
    "equal length, "
    "Adam with a peak rate of 5e-3, inverse-square-root schedule, labels smoothed by 0.1.";

TranslationLaboratory::TranslationLaboratory(const Laboratory& lab)
    : quick_(lab.quick()),
      text_(lab.pairs()),
      coders_(learn_coders(text_.training, lab.size(2000, 200), true)) {}

TranslatorTrial TranslationLaboratory::reference(const std::string& encoder_norm,
                                                 const std::string& decoder_norm, int64_t steps,
                                                 uint64_t seed) const {
  const int64_t layers = quick_ ? 1 : 2;
  return {.model = {.vocabulary = coders_.target.vocabulary(),
                    .context = 64,
                    .layers = layers,
                    .heads = 4,
                    .channels = 64,
                    .norm = "layernorm",
                    .placement = "pre",
                    .position = "sinusoidal",
                    .activation = "relu",
                    .initialization = "xavier",
                    .dropout = 0.1,
                    .encoder_layers = layers,
                    .encoder_norm = encoder_norm,
                    .decoder_norm = decoder_norm},
          .batches = {.batch_tokens = quick_ ? 512 : 1024, .longest = 40},
          .steps = steps,
          .seed = seed};
}

double TranslationLaboratory::pairs_in_a_batch(const PairOptions& batches) const {
  const PairCorpus corpus(text_.training, coders_.source, coders_.target, batches);
  return static_cast<double>(corpus.pairs()) / static_cast<double>(corpus.batches());
}

TranslatorOutcome TranslationLaboratory::train(const TranslatorTrial& trial) const {
  PairOptions batches = trial.batches;
  batches.seed = trial.seed;
  const PairCorpus training(text_.training, coders_.source, coders_.target, batches);
  const PairCorpus validation(text_.validation, coders_.source, coders_.target,
                              {.batch_tokens = 2048, .longest = trial.model.context});
  Seq2Seq model(trial.model, trial.seed);
  TranslationTask task(model, coders_, training, validation, text_.validation,
                       {.smoothing = trial.smoothing});
  Parameters parameters(model);
  AdamW optimizer(parameters, {.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-9, .weight_decay = 0});
  const ScheduleOptions schedule{.name = "invsqrt",
                                 .lr = trial.lr,
                                 .warmup = std::max<int64_t>(1, trial.steps / 5),
                                 .steps = trial.steps};
  TranslatorOutcome outcome;
  for (int64_t i = 1; i <= trial.evaluations; ++i)
    outcome.course.push_back({.step = trial.steps * i / trial.evaluations});
  int64_t step = 0;
  try {
    for (TranslatorScore& now : outcome.course) {
      const double start = thread_seconds();
      for (; step < now.step; ++step)
        training_step(model, parameters, optimizer, task.micro_batches(step), step,
                      learning_rate(schedule, step), trial.clip, trial.seed);
      outcome.seconds += thread_seconds() - start;
      const Validation result = task.validate(true, {});
      if (!std::isfinite(result.loss)) break;
      now.loss = result.loss;
      now.bleu = *result.bleu;
    }
  } catch (const NotFiniteError&) {  // the rest of its course stays without numbers
  }
  return outcome;
}

Table train_translators(const Laboratory& lab, const TranslationLaboratory& translation,
                        const std::vector<std::string>& columns,
                        const std::vector<TranslatorRun>& runs) {
  std::vector<TranslatorOutcome> outcomes(runs.size());
  lab.for_each(static_cast<int64_t>(runs.size()), [&](int64_t i) {
    outcomes[i] = translation.train(runs[i].trial);
    lab.log(to_text(columns, runs[i].cells));
  });
  std::vector<std::string> all = columns;
  all.insert(all.end(), {"step", "loss", "bleu", "seconds"});
  Table table(all);
  for (size_t i = 0; i < runs.size(); ++i)
    for (const TranslatorScore& at : outcomes[i].course) {
      std::vector<Cell> row = runs[i].cells;
      row.insert(row.end(), {static_cast<double>(at.step), at.loss, at.bleu, outcomes[i].seconds});
      table.add(row);
    }
  return table;
}

Table at_the_end(const Table& runs) {
  double last = 0;
  for (const double step : runs.numbers("step")) last = std::max(last, step);
  return runs.where("step", last);
}

std::vector<double> bleus(const Table& runs) {
  std::vector<double> result = runs.numbers("bleu");
  for (double& bleu : result)
    if (std::isnan(bleu)) bleu = 0;
  return result;
}

}  // namespace tapeformer::lab
