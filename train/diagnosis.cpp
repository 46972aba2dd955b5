#include "train/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "optim/loss_scale.h"
#include "train/trainer.h"

namespace tapeformer {
namespace {

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype())) return true;
  // A sum over all elements would overflow where none is infinite.
  bool finite = true;
  dispatch_floating("all_finite", x.dtype(), [&](auto zero) {
    const Tensor here = x.to(Device::cpu);
    const auto* values = here.data<decltype(zero)>();
    for (int64_t i = 0; i < x.numel(); ++i) finite &= std::isfinite(static_cast<double>(values[i]));
  });
  return finite;
}

double norm_of(const Tensor& x) {
  const Tensor square = Tensor::empty({1}, wide(x.dtype()), x.device());
  kernels::sum_of_squares(x, square);
  return std::sqrt(square.item());
}

}  // namespace

std::string first_tensor_not_finite(Module& module) {
  for (const NamedTensor& entry : named_tensors(module))
    if (!all_finite(entry.tensor)) return entry.name;
  return "";
}

std::string first_operation_not_finite(Module& model, const std::function<Tensor()>& loss,
                                       const RandomKey& key) {
  const std::string tensor = first_tensor_not_finite(model);
  if (!tensor.empty()) return "'" + tensor + "' itself is not finite";
  const RandomScope random(key);
  std::ostringstream found;
  found.imbue(std::locale::classic());
  int64_t count = 0;
  Tape tape;
  tape.on_record = [&](const char* operation, std::span<const Tensor> /*inputs*/,
                       std::span<const Tensor> outputs) {
    ++count;
    for (const Tensor& output : outputs)
      if (found.tellp() == 0 && !all_finite(output))
        found << "the first operation whose output is not finite is '" << operation << "' (number "
              << count << " of the forward pass, shape " << output.shape() << ")";
  };
  loss();
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

std::vector<ParameterHealth> examine(Module& model, const std::function<Tensor(int64_t step)>& loss,
                                     int64_t steps, double lr, uint64_t seed) {
  Parameters parameters(model);
  AdamW optimizer(parameters, {.weight_decay = 0});
  const double scale = gradient_scale(parameters.dtype());
  std::vector<ParameterHealth> result;
  std::vector<Tensor> before;
  for (const auto& entry : parameters.entries()) {
    before.push_back(parameters.value(result.size()).clone());
    result.push_back({.name = entry.name, .shape = entry.tensor.shape()});
  }
  for (int64_t step = 0; step < steps; ++step) {
    // Which gradients were written is known before the optimizer reads the rest as zero.
    parameters.zero_gradients();
    const RandomScope random({seed, Purpose::dropout, static_cast<uint32_t>(step), 0});
    Tape tape;
    tape.backward(loss(step), scale);
    for (size_t i = 0; i < result.size(); ++i) {
      const Tensor written = gradient(parameters.entries()[i].tensor);
      result[i].reached |= written.defined();
      result[i].gradient_norm = written.defined() ? norm_of(written) / scale : 0;
    }
    optimizer.step(lr, 0, scale);
  }
  for (size_t i = 0; i < result.size(); ++i)
    result[i].update_norm = norm_of(sub(parameters.value(i), before[i]));
  return result;
}

std::vector<ParameterHealth> examine(GPT& model, const Corpus& corpus, int64_t steps, double lr,
                                     uint64_t seed) {
  const auto loss = [&](int64_t step) {
    const Batch batch = corpus.training_batch(step);
    return model.loss(batch.inputs, batch.targets, {.training = true, .lengths = batch.lengths});
  };
  return examine(model, loss, steps, lr, seed);
}

namespace {

const char* verdict_of(const ParameterHealth& p) {
  if (!p.reached) return "NOT REACHED by backward";
  if (!std::isfinite(p.gradient_norm)) return "gradient NOT FINITE";
  if (p.gradient_norm == 0) return "gradient all zero";
  return p.moved() ? "ok" : "DID NOT MOVE";
}

// "what: a, b", or nothing when there is none for which `holds`.
template <class F>
std::string line_about(const char* what, const std::vector<ParameterHealth>& parameters,
                       const F& holds) {
  std::string names;
  for (const ParameterHealth& p : parameters)
    if (holds(p)) names += (names.empty() ? "" : ", ") + p.name;
  return names.empty() ? "" : what + (": " + names) + "\n";
}

}  // namespace

HealthReport health_report(const std::vector<ParameterHealth>& parameters) {
  HealthReport report;
  size_t width = 9;
  for (const ParameterHealth& p : parameters) width = std::max(width, p.name.size());
  std::ostringstream table;
  table.imbue(std::locale::classic());
  table << std::setprecision(4);
  const auto row = [&](const auto& name, const auto& shape, const auto& gradient,
                       const auto& update, const char* moved, const char* verdict) {
    table << std::left << std::setw(static_cast<int>(width)) << name << ' ' << std::setw(14)
          << shape << std::right << ' ' << std::setw(12) << gradient << ' ' << std::setw(12)
          << update << "  " << std::left << std::setw(5) << moved << "  " << verdict << '\n';
  };
  row("parameter", "shape", "gradient", "update", "moved", "verdict");
  for (const ParameterHealth& p : parameters) {
    std::ostringstream shape;
    shape.imbue(std::locale::classic());
    shape << p.shape;
    row(p.name, shape.str(), p.gradient_norm, p.update_norm, p.moved() ? "yes" : "no",
        verdict_of(p));
    report.healthy &=
        p.reached && std::isfinite(p.gradient_norm) && (p.moved() || p.gradient_norm == 0);
  }
  table << line_about("NOT REACHED by any backward (unused, or cut off by detach())", parameters,
                      [](const ParameterHealth& p) { return !p.reached; })
        << line_about("gradient all zero at the last step", parameters,
                      [](const ParameterHealth& p) { return p.reached && p.gradient_norm == 0; })
        << line_about("DID NOT MOVE", parameters, [](const ParameterHealth& p) {
             return p.reached && p.gradient_norm != 0 && !p.moved();
           });
  if (report.healthy) table << "every parameter was reached, and moved where it had a gradient\n";
  report.table = table.str();
  return report;
}

}  // namespace tapeformer
