#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "train/diagnosis.h"
#include "train/evaluation.h"
#include "train/files.h"
#include "train/format.h"
#include "train/plot.h"
#include "train/profile.h"

namespace tapeformer {
namespace {

class LanguageTask : public TrainTask {
 public:
  LanguageTask(GPT& model, const Corpus& corpus, const TrainOptions& options)
      : model_(model),
        corpus_(corpus),
        accumulate_(options.accumulate),
        eval_batches_(options.eval_batches) {
    // Rows of a step are counted in 32 bits (data/corpus.h).
    check(options.accumulate > 0 && options.accumulate <= UINT32_MAX / corpus.options().rows,
          "training: accumulate must be positive, and the rows of all micro-batches fewer than "
          "2^32, got ",
          options.accumulate);
  }
  Module& model() override { return model_; }
  std::vector<MicroBatch> micro_batches(int64_t step) override {
    return language_batches(model_, corpus_, step, accumulate_);
  }
  Validation validate(bool whole, const StopRequest& stop) override {
    return {evaluate(model_, corpus_, whole ? 0 : eval_batches_, false, stop), {}};
  }
  std::optional<Metrics> inspect(int64_t step) override {
    const Profile now = profile(model_, corpus_.training_batch(step));
    return Metrics{.step = step,
                   .stream_rms = now.stream_rms,
                   .gradient_norms = now.gradient_norms,
                   .tid = now.tid};
  }

 private:
  GPT& model_;
  const Corpus& corpus_;
  int64_t accumulate_, eval_batches_;
};

}  // namespace

std::optional<Metrics> TrainTask::inspect(int64_t) { return {}; }

Trainer::Trainer(std::unique_ptr<TrainTask> own, TrainTask* task, const TrainOptions& options)
    : own_task_(std::move(own)),
      task_(task ? *task : *own_task_),
      model_(task_.model()),
      options_(options),
      parameters_(model_),
      optimizer_(parameters_, options.adamw) {
  const auto not_negative = [](const char* name, double value) {
    check(value >= 0, "training: ", name, " must not be negative, got ", value);
  };
  not_negative("steps", options.schedule.steps);
  not_negative("clip", options.clip);
  not_negative("eval_every", options.eval_every);
  not_negative("eval_batches", options.eval_batches);
  not_negative("save_every", options.save_every);
  not_negative("patience", options.patience);
  not_negative("inspect_every", options.inspect_every);
  not_negative("seconds", options.seconds);
  not_negative("average", options.average);
  check(options.average <= 1000, "training: average must be at most 1000, got ", options.average);
  check(options.accumulate > 0, "training: accumulate must be positive, got ", options.accumulate);
  learning_rate(options.schedule, 0);  // throws for a schedule that makes no sense
  state_.seed = options.seed;
}

Trainer::Trainer(GPT& model, const Corpus& corpus, const TrainOptions& options)
    : Trainer(std::make_unique<LanguageTask>(model, corpus, options), nullptr, options) {}

void Trainer::resume() {
  load_model(options_.out, parameters_);
  parameters_.round_weights();
  state_ = load_training(options_.out, optimizer_);
  check(state_.seed == options_.seed, "training: the run in ", options_.out, " has seed ",
        state_.seed, ", and a resumed run keeps it; got ", options_.seed);
}

double Trainer::seconds() const {
  const std::chrono::duration<double> now = Clock::now() - start_;
  return start_seconds_ + now.count();
}

double Trainer::seconds_left() const {
  return options_.seconds > 0 ? options_.seconds - seconds()
                              : std::numeric_limits<double>::infinity();
}

// The last evaluation, and that of the mean, must still fit.
bool Trainer::out_of_time() const {
  return seconds_left() <= latest_evaluation_ * (options_.average > 0 ? 2 : 1);
}

bool Trainer::due(int64_t every) const {
  return state_.step == options_.schedule.steps || time_is_up_ ||
         (every > 0 && state_.step % every == 0);
}

bool Trainer::no_gain() const {
  return options_.patience > 0 && state_.evaluations_without_gain >= options_.patience;
}

void Trainer::in_folder(const std::function<void()>& write) const {
  try {
    write();
  } catch (const Error&) {
    // Whoever moves or removes the folder during a run does not mean what is still to come.
    if (std::filesystem::exists(options_.out)) throw;
    make_folder(options_.out);
    write();
  }
}

void Trainer::save() {
  if (options_.out.empty()) return;
  const std::string broken = first_tensor_not_finite(parameters_);
  if (!broken.empty())
    fail("training: after step ", state_.step, " '", broken,
         "' is not finite; the last good checkpoint is kept; a lower lr may help");
  options_.description.step = state_.step;
  if (options_.seconds > 0) state_.seconds = seconds();  // else equal runs leave equal files
  in_folder([&] {
    save_checkpoint(options_.out, options_.description, parameters_, optimizer_, state_);
  });
}

void Trainer::write(const Metrics& metrics) {
  if (metrics_) in_folder([&] { metrics_->write(metrics); });
}

// The loss; no number, and still due, where should_stop() ended it.
double Trainer::evaluate_now(const TrainEvents& events) {
  const double begin = seconds();
  const bool whole = time_is_up_ || state_.step == options_.schedule.steps;
  Validation validation;
  state_.evaluation_due = true;
  try {
    validation = task_.validate(whole, events.should_stop);
  } catch (const Stopped&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  state_.evaluation_due = false;
  const double loss = validation.loss;
  if (!std::isfinite(loss))
    fail("training: the validation loss after step ", state_.step, " is ", loss,
         "; the last good checkpoint is kept; a lower lr may help");
  write({.step = state_.step, .val_loss = loss, .val_bleu = validation.bleu});
  judge(validation);
  keep_for_average();
  draw_curves();
  if (events.on_evaluation) events.on_evaluation(state_.step, loss);
  latest_evaluation_ = seconds() - begin;
  return loss;
}

void Trainer::judge(const Validation& validation) {
  ++state_.evaluations_without_gain;
  if (!(validation.judged_by() < state_.best_loss)) return;
  state_.best_loss = validation.judged_by();
  state_.best_step = state_.step;
  state_.averaged = 0;
  state_.evaluations_without_gain = 0;
  options_.description.step = state_.step;
  if (options_.out.empty()) return;
  in_folder(
      [&] { save_model(options_.out / "best.safetensors", options_.description, parameters_); });
}

namespace {

std::filesystem::path recent_file(const std::filesystem::path& folder, int64_t number) {
  return folder / ("recent-" + std::to_string(number) + ".safetensors");
}

}  // namespace

// The last evaluations' weights, in as many files, the oldest replaced. The weights of step 0 are
// none to average.
void Trainer::keep_for_average() {
  if (options_.average == 0 || options_.out.empty() || state_.step == 0) return;
  options_.description.step = state_.step;
  const auto file = recent_file(options_.out, state_.evaluations++ % options_.average);
  in_folder([&] { save_model(file, options_.description, parameters_); });
}

// Judges the mean of the last evaluations' weights, which the model keeps only in
// best.safetensors. What was best is saved, so that a run that goes on has to better it.
void Trainer::try_average(const TrainEvents& events) {
  std::vector<std::filesystem::path> files;
  for (int64_t i = 0; i < options_.average; ++i)
    if (const auto file = recent_file(options_.out, i); std::filesystem::exists(file))
      files.push_back(file);
  if (options_.out.empty() || files.size() < 2) return;
  const TrainingState before = state_;
  load_average(files, parameters_);
  parameters_.round_weights();
  judge(task_.validate(true, {}));
  if (events.on_average) events.on_average(static_cast<int64_t>(files.size()));
  load_model(options_.out, parameters_);
  parameters_.round_weights();
  state_.evaluations_without_gain = before.evaluations_without_gain;  // not one of the run's own
  if (!(state_.best_loss < before.best_loss)) return;
  state_.averaged = static_cast<int64_t>(files.size());
  save();
}

void Trainer::draw_curves() const {
  if (options_.out.empty()) return;
  in_folder([&] {
    const std::filesystem::path path = options_.out / "metrics.jsonl";
    if (!std::filesystem::exists(path)) return;  // somebody removed it since the last step
    const std::vector<Metrics> metrics = read_metrics(path);
    write_curves(options_.out, metrics, options_.perfect_loss);
    write_profile(options_.out, metrics);
  });
}

// Looks at what the next step will train on.
void Trainer::inspect() {
  if (!metrics_ || options_.inspect_every == 0 || !due(options_.inspect_every)) return;
  if (const auto metrics = task_.inspect(state_.step)) write(*metrics);
}

// Starts a step, and only then reads the one before it, so that the device always has work. A step
// on the CPU is done when it has started, and in f16 the next one needs its loss scale.
void Trainer::train_step(const TrainEvents& events) {
  const auto begin = Clock::now();
  const double lr = learning_rate(options_.schedule, state_.step);
  const bool scaled = parameters_.dtype() == DType::f16;
  TrainingStep step(model_, parameters_, optimizer_, task_.micro_batches(state_.step), state_.step,
                    lr, options_.clip, options_.seed, scaled ? &state_.loss_scale : nullptr);
  finish_step(events);
  ++state_.step;
  under_way_.emplace(StepUnderWay{std::move(step), state_.step, lr, begin});
  if (scaled || parameters_.values().device() == Device::cpu) finish_step(events);
}

void Trainer::finish_step(const TrainEvents& events) {
  if (!under_way_) return;
  StepUnderWay step = std::move(*under_way_);
  under_way_.reset();
  StepResult result;
  try {
    result = step.work.result();
  } catch (const NotFiniteError&) {
    state_.step = step.number - 1;  // a step that was started since has updated nothing either
    throw;
  }
  const auto now = Clock::now();
  const std::chrono::duration<double> seconds = now - std::max(step.begin, last_finished_);
  last_finished_ = now;
  const double speed = result.tokens / seconds.count();
  const auto norm = result.skipped ? std::nullopt : std::optional(result.grad_norm);
  write({.step = step.number,
         .train_loss = result.loss,
         .lr = step.lr,
         .grad_norm = norm,
         .tokens_per_second = speed});
  if (events.on_step) events.on_step(step.number, result, speed);
}

TrainResult Trainer::run(int64_t stop_after, const TrainEvents& events) {
  const int64_t steps = options_.schedule.steps;
  const int64_t last = stop_after > 0 ? std::min(stop_after, steps) : steps;
  const int64_t save_every = options_.save_every ? options_.save_every : options_.eval_every;
  start_ = Clock::now();
  start_seconds_ = state_.seconds;
  if (!options_.out.empty()) {
    std::filesystem::create_directories(options_.out);
    // Lines of steps that the checkpoint does not hold will be measured again.
    metrics_ = std::make_unique<MetricsWriter>(options_.out / "metrics.jsonl",
                                               state_.step == 0 ? 0 : state_.step + 1,
                                               state_.evaluation_due);
  }
  double loss = std::numeric_limits<double>::quiet_NaN();
  if (state_.step == 0) {
    save();
    inspect();
    if (due(options_.eval_every)) loss = evaluate_now(events);
  } else if (state_.evaluation_due) {
    loss = evaluate_now(events);
    if (!state_.evaluation_due) save();
  }

  int64_t saved_step = state_.step;
  bool stopped = state_.evaluation_due;
  while (state_.step < last && !no_gain() && !stopped && !time_is_up_) {
    train_step(events);
    time_is_up_ = out_of_time();
    if (due(options_.inspect_every) || due(options_.eval_every) || due(save_every))
      finish_step(events);
    inspect();
    if (due(options_.eval_every)) loss = evaluate_now(events);
    if (due(save_every)) {
      save();
      saved_step = state_.step;
    }
    stopped = state_.evaluation_due || (events.should_stop && events.should_stop());
  }
  finish_step(events);
  if (saved_step != state_.step) save();
  draw_curves();

  using End = TrainResult::End;
  const End end = state_.evaluation_due  ? End::stopped
                  : state_.step == steps ? End::finished
                  : no_gain()            ? End::no_gain
                  : time_is_up_          ? End::out_of_time
                                         : End::stopped;
  if (events.on_end) events.on_end(end);
  if (end != End::stopped) try_average(events);
  const bool evaluated = (state_.step == steps || time_is_up_) && std::isfinite(loss);
  if (!evaluated)
    loss = stopped ? std::numeric_limits<double>::quiet_NaN() : task_.validate(true, {}).loss;
  return {end,
          state_.step,
          loss,
          state_.best_loss,
          state_.best_step,
          state_.averaged,
          state_.loss_scale.skipped};
}

}  // namespace tapeformer
