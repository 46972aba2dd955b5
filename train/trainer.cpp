#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "train/diagnosis.h"
#include "train/evaluation.h"
#include "train/format.h"
#include "train/plot.h"
#include "train/profile.h"

namespace tapeformer {
namespace {

[[noreturn]] void fail_not_finite(const char* what, int64_t step, double value,
                                  const std::string& where) {
  throw NotFiniteError("training: the " + std::string(what) + " of step " +
                       std::to_string(step + 1) + " is " + shortest(value) + "; " + where +
                       "; a lower --lr or --clip, or a longer --warmup, may help");
}

}  // namespace

StepResult training_step(GPT& model, Parameters& parameters, Optimizer& optimizer,
                         const Corpus& corpus, int64_t step, int64_t accumulate, double lr,
                         double max_norm, uint64_t seed, LossScale* loss_scale) {
  const double scale = loss_scale ? loss_scale->value : 1;
  std::vector<Batch> batches;
  StepResult result;
  for (int64_t i = 0; i < accumulate; ++i) {
    batches.push_back(corpus.training_batch(step, i));
    result.tokens += batches.back().tokens;
  }
  const RandomScope random({seed, Purpose::dropout, static_cast<uint32_t>(step), 0});
  parameters.zero_gradients();
  for (const Batch& batch : batches) {
    const RandomKey key = RandomScope::position();
    const double share = static_cast<double>(batch.tokens) / result.tokens;
    const Context context{.training = true, .lengths = batch.lengths};
    Tape tape;
    const Tensor loss = model.loss(batch.inputs, batch.targets, context);
    const double value = loss.item();
    if (!std::isfinite(value))
      fail_not_finite("loss", step, value, first_operation_not_finite(model, batch, key));
    result.loss += share * value;
    tape.backward(loss, share * scale);
  }
  result.grad_norm = optimizer.step(lr, max_norm, scale);
  const bool finite = std::isfinite(result.grad_norm);
  result.skipped = !finite && scale > 1;
  if (loss_scale) loss_scale->update(finite);
  if (!finite && !result.skipped)
    fail_not_finite("gradient norm", step, result.grad_norm, first_gradient_not_finite(parameters));
  return result;
}

Trainer::Trainer(GPT& model, const Corpus& corpus, const TrainOptions& options)
    : model_(model),
      corpus_(corpus),
      options_(options),
      parameters_(model),
      optimizer_(parameters_, options.adamw) {
  const auto not_negative = [](const char* name, double value) {
    check(value >= 0, "training: ", name, " must not be negative, got ", value);
  };
  not_negative("steps", options.schedule.steps);
  not_negative("clip", options.clip);
  not_negative("eval-every", options.eval_every);
  not_negative("eval-batches", options.eval_batches);
  not_negative("save-every", options.save_every);
  not_negative("patience", options.patience);
  not_negative("inspect-every", options.inspect_every);
  // Rows of a step are counted in 32 bits (data/corpus.h).
  check(options.accumulate > 0 && options.accumulate <= UINT32_MAX / corpus.options().rows,
        "training: accumulate must be positive, and the rows of all micro-batches fewer than 2^32, "
        "got ",
        options.accumulate);
  learning_rate(options.schedule, 0);  // throws for a schedule that makes no sense
  state_.seed = options.seed;
}

void Trainer::resume() {
  load_model(options_.out, parameters_);
  parameters_.round_weights();
  state_ = load_training(options_.out, optimizer_);
  check(state_.seed == options_.seed, "training: the run in ", options_.out, " has seed ",
        state_.seed, ", and a resumed run keeps it; got ", options_.seed);
}

bool Trainer::due(int64_t every) const {
  return state_.step == options_.schedule.steps || (every > 0 && state_.step % every == 0);
}

bool Trainer::no_gain() const {
  return options_.patience > 0 && state_.evaluations_without_gain >= options_.patience;
}

void Trainer::save() {
  if (options_.out.empty()) return;
  const std::string broken = first_tensor_not_finite(parameters_);
  if (!broken.empty())
    fail("training: after step ", state_.step, " '", broken,
         "' is not finite; the last good checkpoint is kept; a lower --lr may help");
  options_.description.step = state_.step;
  save_checkpoint(options_.out, options_.description, parameters_, optimizer_, state_);
}

double Trainer::evaluate_now(const TrainEvents& events) {
  const bool at_the_end = state_.step == options_.schedule.steps;
  const double loss = evaluate(model_, corpus_, at_the_end ? 0 : options_.eval_batches);
  if (!std::isfinite(loss))
    fail("training: the validation loss after step ", state_.step, " is ", loss,
         "; the last good checkpoint is kept; a lower --lr may help");
  if (metrics_) metrics_->write({.step = state_.step, .val_loss = loss});
  ++state_.evaluations_without_gain;
  if (loss < state_.best_loss) {
    state_.best_loss = loss;
    state_.best_step = state_.step;
    state_.evaluations_without_gain = 0;
    options_.description.step = state_.step;
    if (!options_.out.empty())
      save_model(options_.out / "best.safetensors", options_.description, parameters_);
  }
  draw_curves();
  if (events.on_evaluation) events.on_evaluation(state_.step, loss);
  return loss;
}

void Trainer::draw_curves() const {
  const std::filesystem::path path = options_.out / "metrics.jsonl";
  // Somebody may have removed it since the last step.
  if (options_.out.empty() || !std::filesystem::exists(path)) return;
  const std::vector<Metrics> metrics = read_metrics(path);
  write_curves(options_.out, metrics, options_.perfect_loss);
  write_profile(options_.out, metrics);
}

// Looks at what the next step will train on.
void Trainer::inspect() {
  if (!metrics_ || options_.inspect_every == 0 || !due(options_.inspect_every)) return;
  const Profile now = profile(model_, corpus_.training_batch(state_.step));
  metrics_->write({.step = state_.step,
                   .stream_rms = now.stream_rms,
                   .gradient_norms = now.gradient_norms,
                   .tid = now.tid});
}

void Trainer::train_step(const TrainEvents& events) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const double lr = learning_rate(options_.schedule, state_.step);
  const bool scaled = parameters_.dtype() == DType::f16;
  const StepResult result =
      training_step(model_, parameters_, optimizer_, corpus_, state_.step, options_.accumulate, lr,
                    options_.clip, options_.seed, scaled ? &state_.loss_scale : nullptr);
  const std::chrono::duration<double> seconds = Clock::now() - start;
  const double speed = result.tokens / seconds.count();
  ++state_.step;
  const auto norm = result.skipped ? std::nullopt : std::optional(result.grad_norm);
  if (metrics_)
    metrics_->write({.step = state_.step,
                     .train_loss = result.loss,
                     .lr = lr,
                     .grad_norm = norm,
                     .tokens_per_second = speed});
  if (events.on_step) events.on_step(state_.step, result, speed);
}

TrainResult Trainer::run(int64_t stop_after, const TrainEvents& events) {
  const int64_t steps = options_.schedule.steps;
  const int64_t last = stop_after > 0 ? std::min(stop_after, steps) : steps;
  const int64_t save_every = options_.save_every ? options_.save_every : options_.eval_every;
  if (!options_.out.empty()) {
    std::filesystem::create_directories(options_.out);
    // Lines of steps that the checkpoint does not hold will be measured again.
    metrics_ = std::make_unique<MetricsWriter>(options_.out / "metrics.jsonl",
                                               state_.step == 0 ? 0 : state_.step + 1);
  }
  double loss = std::numeric_limits<double>::quiet_NaN();
  if (state_.step == 0) {
    save();
    inspect();
    if (due(options_.eval_every)) loss = evaluate_now(events);
  }

  int64_t saved_step = state_.step;
  bool stopped = false;
  while (state_.step < last && !no_gain() && !stopped) {
    train_step(events);
    inspect();
    if (due(options_.eval_every)) loss = evaluate_now(events);
    if (due(save_every)) {
      save();
      saved_step = state_.step;
    }
    stopped = events.should_stop && events.should_stop();
  }
  if (saved_step != state_.step) save();
  draw_curves();

  using End = TrainResult::End;
  const End end = state_.step == steps ? End::finished : no_gain() ? End::no_gain : End::stopped;
  if (events.on_end) events.on_end(end);
  if (end != End::finished || !std::isfinite(loss))  // else the last step was evaluated in full
    loss = stopped ? std::numeric_limits<double>::quiet_NaN() : evaluate(model_, corpus_);
  return {end, state_.step, loss, state_.best_loss, state_.best_step, state_.loss_scale.skipped};
}

}  // namespace tapeformer
