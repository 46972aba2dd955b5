// One update of a model: the gradients of its micro-batches, clipping and the optimizer.
#pragma once

#include <functional>
#include <vector>

#include "core/readback.h"
#include "data/corpus.h"
#include "layers/gpt.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"

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

/// A part of a step's batch: its mean loss over its tokens.
struct MicroBatch {
  int64_t tokens = 0;
  std::function<Tensor()> loss;
};
/// Those of training step `step` of the corpus.
std::vector<MicroBatch> language_batches(GPT& model, const Corpus& corpus, int64_t step,
                                         int64_t accumulate);

/// One update of the model: the gradient of the mean loss over the tokens of all micro-batches,
/// however they are divided, then clipping to `max_norm` and the optimizer. The constructor gives
/// the device all of its work, and waits for none: the next step may be started before this one's
/// result is read. All that it is given has to live until then.
class TrainingStep {
 public:
  /// With `loss_scale`, which result() updates, the result has to be read before the next step.
  TrainingStep(Module& model, Parameters& parameters, Optimizer& optimizer,
               std::vector<MicroBatch> batches, int64_t step, double lr, double max_norm,
               uint64_t seed, LossScale* loss_scale = nullptr);

  /// Waits for the step. A loss or gradient that is not finite throws NotFiniteError, naming the
  /// step and the first operation (or parameter) where it appeared; this step and those that were
  /// started since leave the parameters as they are. With a loss scale, a gradient that is not
  /// finite skips the update, and throws only when the scale cannot fall further. Once per step.
  StepResult result();

 private:
  void compute_gradients();
  double share_of(const MicroBatch& batch) const;
  [[noreturn]] void fail(const char* what, double value, const std::string& where) const;

  Module& model_;
  Parameters& parameters_;
  Optimizer& optimizer_;
  std::vector<MicroBatch> batches_;
  std::vector<RandomKey> keys_;  // where each micro-batch's random numbers begin
  int64_t step_, tokens_ = 0, updates_before_;
  uint64_t seed_;
  LossScale* loss_scale_;
  double scale_;
  Tensor numbers_;  // [batches + 1]: the losses and the gradient norm
  Readback read_;
};

/// Takes a step and waits for it.
StepResult training_step(Module& model, Parameters& parameters, Optimizer& optimizer,
                         std::vector<MicroBatch> batches, int64_t step, double lr, double max_norm,
                         uint64_t seed, LossScale* loss_scale = nullptr);
/// The same on training step `step` of the corpus, in `accumulate` micro-batches.
StepResult training_step(GPT& model, Parameters& parameters, Optimizer& optimizer,
                         const Corpus& corpus, int64_t step, int64_t accumulate, double lr,
                         double max_norm, uint64_t seed, LossScale* loss_scale = nullptr);

}  // namespace tapeformer
