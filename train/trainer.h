// The training loop: batches in, updates, evaluations, metrics and checkpoints out.
//
// Everything random in step s is a function of (seed, s), so a run that stops and resumes gives the
// same bits as one that does not, and evaluating more often changes no training loss.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "data/corpus.h"
#include "layers/gpt.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/metrics.h"

namespace tapeformer {

/// A loss or a gradient norm that is not finite.
struct NotFiniteError : Error {
  using Error::Error;
};

struct StepResult {
  double loss = 0;       ///< mean over the tokens of all micro-batches, before the update
  double grad_norm = 0;  ///< before clipping
  int64_t tokens = 0;
  bool skipped = false;  ///< a gradient overflowed in f16, so there was no update
};

/// One update of the model on training step `step` of the corpus: `accumulate` micro-batches, each
/// weighted by its tokens, then clipping to `max_norm` and the optimizer. A loss or gradient that
/// is not finite throws NotFiniteError, naming the step and the first operation (or parameter)
/// where it appeared, and leaves the parameters as they are. With `loss_scale`, a gradient that is
/// not finite skips the update, and throws only when the scale cannot fall further.
StepResult training_step(GPT& model, Parameters& parameters, Optimizer& optimizer,
                         const Corpus& corpus, int64_t step, int64_t accumulate, double lr,
                         double max_norm, uint64_t seed, LossScale* loss_scale = nullptr);

struct TrainOptions {
  ScheduleOptions schedule;  ///< its horizon is the number of steps
  AdamWOptions adamw;
  double clip = 1;         ///< global gradient norm; 0: no clipping
  int64_t accumulate = 1;  ///< micro-batches per update
  uint64_t seed = 1;
  int64_t eval_every = 250;   ///< 0: only at the end
  int64_t eval_batches = 0;   ///< of each evaluation but the last; 0: the whole validation part
  int64_t save_every = 0;     ///< 0: with every evaluation
  int64_t patience = 0;       ///< stop after so many evaluations without gain; 0: never
  int64_t inspect_every = 0;  ///< profiles (profile.h) in the metrics and as a plot; 0: never
  std::filesystem::path out;  ///< empty: write no files
  ModelFile description;      ///< goes into the checkpoint
  std::optional<double> perfect_loss;  ///< of a model that knows the source, for the plot
};

struct TrainResult {
  enum class End { finished, stopped, no_gain } end = End::finished;
  int64_t steps = 0;  ///< updates behind the final weights
  /// Of the final weights, over the whole validation part. No number where should_stop() ended the
  /// run: whoever is in a hurry is not kept waiting.
  double validation_loss = 0;
  double best_loss = 0;  ///< over the evaluations
  int64_t best_step = 0;
  int64_t skipped_steps = 0;  ///< of those with gradients in f16, see LossScale
};

/// What a program may want to know or decide while training runs. All optional.
struct TrainEvents {
  std::function<void(int64_t step, const StepResult&, double tokens_per_second)> on_step;
  std::function<void(int64_t step, double validation_loss)> on_evaluation;
  std::function<bool()> should_stop;  ///< asked after every step: save and return?
  /// The last checkpoint is on the disk; the final evaluation of a run that ends early is to come.
  std::function<void(TrainResult::End)> on_end;
};

class Trainer {
 public:
  /// Throws for options that make no sense.
  Trainer(GPT& model, const Corpus& corpus, const TrainOptions& options);

  /// Goes on from the checkpoint in options.out.
  void resume();
  /// Trains until `stop_after` updates are done (0: all). The first checkpoint is of step 0; a run
  /// that ends, for whatever reason but an exception, leaves one of its last step. Weights that are
  /// not finite throw and are never saved.
  TrainResult run(int64_t stop_after, const TrainEvents& events);

  int64_t step() const { return state_.step; }
  /// Where the scale of a model in f16 starts, if not at LossScale's default.
  void set_loss_scale(double value) { state_.loss_scale.value = value; }
  Parameters& parameters() { return parameters_; }

 private:
  void train_step(const TrainEvents& events);
  void inspect();
  double evaluate_now(const TrainEvents& events);
  void save();
  void draw_curves() const;
  bool due(int64_t every) const;
  bool no_gain() const;

  GPT& model_;
  const Corpus& corpus_;
  TrainOptions options_;
  Parameters parameters_;
  AdamW optimizer_;
  TrainingState state_;
  std::unique_ptr<MetricsWriter> metrics_;
};

}  // namespace tapeformer
