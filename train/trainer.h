// The training loop: batches in, updates, evaluations, metrics and checkpoints out, for a language
// model or for any task of yours.
//
// Everything random in step s is a function of (seed, s), so a run that stops and resumes gives the
// same bits as one that does not, and evaluating more often changes no training loss.
#pragma once

#include <chrono>
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
#include "train/stop.h"
#include "train/training_step.h"

namespace tapeformer {

struct Validation {
  double loss = 0;             ///< nats per token
  std::optional<double> bleu;  ///< where it is known, the best model is that of the highest
  /// The lower the better. Of equal BLEU, as 0 at the beginning, the lower loss counts, by less
  /// than BLEU's digits.
  double judged_by() const { return bleu ? 1e-9 * loss - *bleu : loss; }
};

/// What a Trainer trains, and how it is judged.
class TrainTask {
 public:
  virtual ~TrainTask() = default;
  virtual Module& model() = 0;
  /// The parts of the batch of a step: a function of the step alone.
  virtual std::vector<MicroBatch> micro_batches(int64_t step) = 0;
  /// `whole`: on all of the validation part, at the end of a run. Throws Stopped soon after `stop`
  /// asks for it.
  virtual Validation validate(bool whole, const StopRequest& stop) = 0;
  /// What inspect_every writes about a step; nothing by default.
  virtual std::optional<Metrics> inspect(int64_t step);
};

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
  double seconds = 0;   ///< end in time for the last evaluation to be done by then; 0: no limit
  int64_t average = 0;  ///< at the end, try the mean weights of so many last evaluations; 0: not
  std::filesystem::path out;           ///< empty: write no files
  ModelFile description;               ///< goes into the checkpoint
  std::optional<double> perfect_loss;  ///< of a model that knows the source, for the plot
};

struct TrainResult {
  enum class End { finished, stopped, no_gain, out_of_time } end = End::finished;
  int64_t steps = 0;  ///< updates behind the final weights
  /// Of the final weights, over the whole validation part. No number where should_stop() ended the
  /// run: whoever is in a hurry is not kept waiting.
  double validation_loss = 0;
  double best_loss = 0;  ///< over the evaluations: what they are judged by; infinite without one
  int64_t best_step = 0;
  /// best.safetensors is the mean of so many evaluations' weights; 0: of one.
  int64_t averaged = 0;
  int64_t skipped_steps = 0;  ///< of those with gradients in f16, see LossScale
};

/// What a program may want to know or decide while training runs. All optional.
struct TrainEvents {
  /// On a GPU the next step is under way by then, unless something was due after this one.
  std::function<void(int64_t step, const StepResult&, double tokens_per_second)> on_step;
  std::function<void(int64_t step, double validation_loss)> on_evaluation;
  std::function<void(int64_t count)> on_average;  ///< the mean of so many weights was judged
  /// Asked after every step and during evaluations: save and return? An evaluation that it ends
  /// counts for nothing, and the run, once it goes on, begins with it.
  StopRequest should_stop;
  /// The last checkpoint is on the disk; the final evaluation of a run that ends early is to come.
  std::function<void(TrainResult::End)> on_end;
};

class Trainer {
 public:
  /// Throws for options that make no sense.
  Trainer(TrainTask& task, const TrainOptions& options) : Trainer(nullptr, &task, options) {}
  /// A language model on a corpus.
  Trainer(GPT& model, const Corpus& corpus, const TrainOptions& options);

  /// Goes on from the checkpoint in options.out.
  void resume();
  /// Trains until `stop_after` updates are done (0: all). The first checkpoint is of step 0; a run
  /// that ends, for whatever reason but an exception, leaves one of its last step. Weights that are
  /// not finite throw and are never saved. A folder moved or removed meanwhile is made anew.
  TrainResult run(int64_t stop_after, const TrainEvents& events);

  /// Where resume() and run() keep their files, instead of options.out.
  void set_out(std::filesystem::path out) { options_.out = std::move(out); }

  int64_t step() const { return state_.step; }
  /// Of a run that is under way, until options.seconds are over; infinite without that limit.
  double seconds_left() const;
  /// Where the scale of a model in f16 starts, if not at LossScale's default.
  void set_loss_scale(double value) { state_.loss_scale.value = value; }
  Parameters& parameters() { return parameters_; }

 private:
  Trainer(std::unique_ptr<TrainTask> own, TrainTask* task, const TrainOptions& options);
  using Clock = std::chrono::steady_clock;
  struct StepUnderWay {
    TrainingStep work;
    int64_t number;
    double lr;
    Clock::time_point begin;
  };
  void train_step(const TrainEvents& events);
  void finish_step(const TrainEvents& events);
  void inspect();
  void in_folder(const std::function<void()>& write) const;
  void write(const Metrics& metrics);
  double evaluate_now(const TrainEvents& events);
  void judge(const Validation& validation);
  void keep_for_average();
  void try_average(const TrainEvents& events);
  double seconds() const;
  bool out_of_time() const;
  void save();
  void draw_curves() const;
  bool due(int64_t every) const;
  bool no_gain() const;

  std::unique_ptr<TrainTask> own_task_;  // where there is none but a model and a corpus
  TrainTask& task_;
  Module& model_;
  TrainOptions options_;
  Parameters parameters_;
  AdamW optimizer_;
  TrainingState state_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<StepUnderWay> under_way_;  // its result is still to be read
  Clock::time_point start_, last_finished_;
  double start_seconds_ = 0, latest_evaluation_ = 0;  // seconds
  bool time_is_up_ = false;
};

}  // namespace tapeformer
