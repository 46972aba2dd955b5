#include "train/diagnosis.h"

#include <cmath>
#include <cstdio>
#include <sstream>

#include "train/trainer.h"

namespace tapeformer {
namespace {

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype())) return true;
  // A sum over all elements would overflow where none is infinite.
  bool finite = true;
  dispatch_floating("all_finite", x.dtype(), [&](auto zero) {
    const auto* values = x.data<decltype(zero)>();
    for (int64_t i = 0; i < x.numel(); ++i) finite &= std::isfinite(values[i]);
  });
  return finite;
}

double norm_of(const Tensor& x) {
  const Tensor square = x.empty_like(Shape{1});
  kernels::sum_of_squares(x, square);
  return std::sqrt(square.item());
}

}  // namespace

std::string first_tensor_not_finite(Module& module) {
  for (const NamedTensor& entry : named_tensors(module))
    if (!all_finite(entry.tensor)) return entry.name;
  return "";
}

std::string first_operation_not_finite(GPT& model, const Batch& batch, const RandomKey& key) {
  const std::string tensor = first_tensor_not_finite(model);
  if (!tensor.empty()) return "'" + tensor + "' itself is not finite";
  const RandomScope random(key);
  std::ostringstream found;
  int64_t count = 0;
  Tape tape;
  tape.on_record = [&](const char* operation, std::span<const Tensor> outputs) {
    ++count;
    for (const Tensor& output : outputs)
      if (found.tellp() == 0 && !all_finite(output))
        found << "the first operation whose output is not finite is '" << operation << "' (number "
              << count << " of the forward pass, shape " << output.shape() << ")";
  };
  model.loss(batch.inputs, batch.targets, {.training = true, .lengths = batch.lengths});
  return found.tellp() == 0 ? "every operation's output is finite" : found.str();
}

std::string first_gradient_not_finite(const Parameters& parameters) {
  for (const Parameters::Entry& entry : parameters.entries()) {
    const Tensor written = gradient(entry.tensor);
    if (written.defined() && !all_finite(written))
      return "the first parameter whose gradient is not finite is '" + entry.name + "'";
  }
  return "every gradient is finite, but their squares overflow";
}

std::vector<ParameterHealth> examine(GPT& model, const Corpus& corpus, int64_t steps, double lr,
                                     uint64_t seed) {
  Parameters parameters(model);
  AdamW optimizer(parameters, {.weight_decay = 0});
  std::vector<ParameterHealth> result;
  std::vector<Tensor> before;
  for (const auto& entry : parameters.entries()) {
    result.push_back({.name = entry.name, .shape = entry.tensor.shape()});
    before.push_back(entry.tensor.clone());
  }
  for (int64_t step = 0; step < steps; ++step) {
    // Which gradients were written is known before the optimizer reads the rest as zero.
    parameters.zero_gradients();
    const Batch batch = corpus.training_batch(step);
    const RandomScope random({seed, Purpose::dropout, static_cast<uint32_t>(step), 0});
    Tape tape;
    tape.backward(
        model.loss(batch.inputs, batch.targets, {.training = true, .lengths = batch.lengths}));
    for (size_t i = 0; i < result.size(); ++i) {
      const Tensor written = gradient(parameters.entries()[i].tensor);
      result[i].reached |= written.defined();
      result[i].gradient_norm = written.defined() ? norm_of(written) : 0;
    }
    optimizer.step(lr, 0);
  }
  for (size_t i = 0; i < result.size(); ++i)
    result[i].update_norm = norm_of(sub(parameters.entries()[i].tensor.detach(), before[i]));
  return result;
}

HealthReport health_report(const std::vector<ParameterHealth>& parameters) {
  HealthReport report;
  std::ostringstream table;
  char line[256];
  std::snprintf(line, sizeof line, "%-36s %-14s %12s %12s  %s\n", "parameter", "shape", "gradient",
                "update", "verdict");
  table << line;
  for (const ParameterHealth& p : parameters) {
    std::ostringstream shape;
    shape << p.shape;
    const char* verdict = !p.reached             ? "NOT REACHED by backward"
                          : p.gradient_norm == 0 ? "gradient is all zero"
                          : !p.moved()           ? "DID NOT MOVE"
                                                 : "ok";
    std::snprintf(line, sizeof line, "%-36s %-14s %12.4g %12.4g  %s\n", p.name.c_str(),
                  shape.str().c_str(), p.gradient_norm, p.update_norm, verdict);
    table << line;
    report.healthy &= p.reached && (p.moved() || p.gradient_norm == 0);
  }
  report.table = table.str();
  return report;
}

}  // namespace tapeformer
