#include "train/batch_statistics.h"

#include <cmath>

#include "layers/batch_norms.h"
#include "train/evaluation.h"
#include "train/host_values.h"

namespace tapeformer {
namespace {

struct NamedNorm {
  std::string name;
  RunningNorm* norm;
};

std::vector<NamedNorm> running_norms(GPT& model) {
  std::vector<NamedNorm> result;
  for (const NamedModule& part : named_modules(model))
    if (auto* norm = dynamic_cast<RunningNorm*>(part.module)) result.push_back({part.name, norm});
  return result;
}

// A look at the batch's statistics: the moments stay in each norm, nothing else changes.
void pass(GPT& model, const Batch& batch) {
  const Pause pause;
  model.hidden(batch.inputs, {.lengths = batch.lengths, .batch_statistics = true});
}

double distance(const RunningNorm& norm) {
  const std::vector<double> running = host_values(norm.running_variance);
  const std::vector<double> variance = host_values(norm.batch.variance);
  const bool centred = norm.running_mean.defined();
  const std::vector<double> running_mean = centred ? host_values(norm.running_mean) : running;
  const std::vector<double> mean = centred ? host_values(norm.batch.mean) : variance;
  const auto root = [&](double square) { return std::sqrt(square + norm.epsilon); };
  double sum = 0;
  for (size_t c = 0; c < variance.size(); ++c) {
    const double apart = centred ? running_mean[c] - mean[c] : root(running[c]) - root(variance[c]);
    sum += std::abs(apart) / root(variance[c]);
  }
  return sum / static_cast<double>(variance.size());
}

}  // namespace

bool has_running_statistics(GPT& model) { return !running_norms(model).empty(); }

std::vector<NamedValue> statistics_distance(GPT& model) {
  std::vector<NamedValue> result;
  for (const auto& [name, norm] : running_norms(model))
    if (norm->batch.variance.defined()) result.push_back({name, distance(*norm)});
  return result;
}

std::vector<NamedValue> statistics_distance(GPT& model, const Batch& batch) {
  pass(model, batch);
  return statistics_distance(model);
}

void recalibrate(GPT& model, const Corpus& corpus, int64_t batches) {
  const std::vector<NamedNorm> norms = running_norms(model);
  check(!norms.empty(), "recalibrate: a model of norm '", model.config().norm, "' and placement '",
        model.config().placement, "' keeps no running statistics");
  check(batches > 0, "recalibrate: needs at least one batch, got ", batches);
  for (int64_t k = 1; k <= batches; ++k) {
    pass(model, corpus.training_batch(k - 1));
    for (const auto& [name, norm] : norms)
      norm->update(norm->batch, 1.0 / static_cast<double>(k));  // the mean of the first k
  }
}

namespace {

// Gives a module's buffers back as they were, at the end of its scope.
class KeepBuffers {
 public:
  explicit KeepBuffers(Module& module) {
    for (const NamedTensor& entry : named_tensors(module))
      if (entry.role == Role::buffer) kept_.push_back({entry.tensor, entry.tensor.clone()});
  }
  ~KeepBuffers() {
    for (const auto& [buffer, value] : kept_) buffer.copy_from(value);
  }
  KeepBuffers(const KeepBuffers&) = delete;
  KeepBuffers& operator=(const KeepBuffers&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> kept_;  // each buffer and its value
};

}  // namespace

StatisticsLosses compare_statistics(GPT& model, const Corpus& corpus, int64_t batches,
                                    int64_t eval_batches) {
  const KeepBuffers keep(model);
  StatisticsLosses losses;
  losses.running = evaluate(model, corpus, eval_batches);
  losses.batch = evaluate(model, corpus, eval_batches, true);
  recalibrate(model, corpus, batches);
  losses.recalibrated = evaluate(model, corpus, eval_batches);
  return losses;
}

}  // namespace tapeformer
