#include "train/training_step.h"

#include <cmath>

#include "train/diagnosis.h"
#include "train/format.h"

namespace tapeformer {

TrainingStep::TrainingStep(Module& model, Parameters& parameters, Optimizer& optimizer,
                           std::vector<MicroBatch> batches, int64_t step, double lr,
                           double max_norm, uint64_t seed, LossScale* loss_scale)
    : model_(model),
      parameters_(parameters),
      optimizer_(optimizer),
      batches_(std::move(batches)),
      step_(step),
      updates_before_(optimizer.steps()),
      seed_(seed),
      loss_scale_(loss_scale),
      scale_(loss_scale ? loss_scale->value : 1) {
  for (const MicroBatch& batch : batches_) tokens_ += batch.tokens;
  const auto count = static_cast<int64_t>(batches_.size());
  numbers_ = parameters.values().empty_like({count + 1});
  compute_gradients();
  optimizer.start_step(lr, max_norm, scale_, numbers_.rows(0, count));
  numbers_.rows(count, count + 1).copy_from(optimizer.norm());
  read_ = Readback(numbers_);
}

void TrainingStep::compute_gradients() {
  const RandomScope random({seed_, Purpose::dropout, static_cast<uint32_t>(step_), 0});
  parameters_.zero_gradients();
  keys_.clear();
  for (const MicroBatch& batch : batches_) {
    const auto i = static_cast<int64_t>(keys_.size());
    keys_.push_back(RandomScope::position());
    Tape tape;
    const Tensor loss = batch.loss();
    tape.backward(loss, share_of(batch) * scale_);
    numbers_.rows(i, i + 1).copy_from(loss.detach().view({1}));
  }
}

double TrainingStep::share_of(const MicroBatch& batch) const {
  return static_cast<double>(batch.tokens) / tokens_;
}

StepResult TrainingStep::result() {
  const Tensor& numbers = read_.wait();
  const auto number = [&](int64_t i) { return numbers.rows(i, i + 1).item(); };
  const auto count = static_cast<int64_t>(batches_.size());
  StepResult result{.grad_norm = number(count), .tokens = tokens_};
  bool finite = std::isfinite(result.grad_norm);
  for (int64_t i = 0; i < count; ++i) {
    result.loss += share_of(batches_[i]) * number(i);
    finite &= std::isfinite(number(i));
  }
  if (!finite) optimizer_.set_steps(updates_before_);
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(number(i)))
      fail("loss", number(i), first_operation_not_finite(model_, batches_[i].loss, keys_[i]));
  result.skipped = !finite && scale_ > 1;
  if (loss_scale_) loss_scale_->update(finite);
  if (finite || result.skipped) return result;
  compute_gradients();  // a step that was started since has written its own
  fail("gradient norm", result.grad_norm, first_gradient_not_finite(parameters_));
}

void TrainingStep::fail(const char* what, double value, const std::string& where) const {
  throw NotFiniteError("training: the " + std::string(what) + " of step " +
                       std::to_string(step_ + 1) + " is " + shortest(value) + "; " + where +
                       "; a lower lr or clip, or a longer warmup, may help");
}

StepResult training_step(Module& model, Parameters& parameters, Optimizer& optimizer,
                         std::vector<MicroBatch> batches, int64_t step, double lr, double max_norm,
                         uint64_t seed, LossScale* loss_scale) {
  return TrainingStep(model, parameters, optimizer, std::move(batches), step, lr, max_norm, seed,
                      loss_scale)
      .result();
}

StepResult training_step(GPT& model, Parameters& parameters, Optimizer& optimizer,
                         const Corpus& corpus, int64_t step, int64_t accumulate, double lr,
                         double max_norm, uint64_t seed, LossScale* loss_scale) {
  return training_step(model, parameters, optimizer,
                       language_batches(model, corpus, step, accumulate), step, lr, max_norm, seed,
                       loss_scale);
}

std::vector<MicroBatch> language_batches(GPT& model, const Corpus& corpus, int64_t step,
                                         int64_t accumulate) {
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < accumulate; ++i) {
    const Batch batch = corpus.training_batch(step, i);
    batches.push_back({batch.tokens, [&model, batch] {
                         return model.loss(batch.inputs, batch.targets,
                                           {.training = true, .lengths = batch.lengths});
                       }});
  }
  return batches;
}

}  // namespace tapeformer
