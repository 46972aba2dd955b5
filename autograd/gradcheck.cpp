#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "autograd/ops.h"

namespace tapeformer {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

double projected(const Function& f, const std::vector<Tensor>& inputs, const Tensor& projection) {
  const Pause pause;
  return sum(f(inputs) * projection).item();
}

// Central differences of the projected output with respect to inputs[i], element by element.
std::vector<double> numeric_gradient(const Function& f, const std::vector<Tensor>& inputs, size_t i,
                                     const Tensor& projection, double step) {
  std::vector<double> result(inputs[i].numel());
  double* x = inputs[i].data<double>();
  for (size_t k = 0; k < result.size(); ++k) {
    const double saved = x[k];
    x[k] = saved + step;
    const double above = projected(f, inputs, projection);
    x[k] = saved - step;
    const double below = projected(f, inputs, projection);
    x[k] = saved;
    result[k] = (above - below) / (2 * step);
  }
  return result;
}

// The tape's gradients of those inputs for which `wanted`; `present` times 1 is there beforehand.
// f sees leaves, or, when `recorded`, results of an operation on them: the gradients of those begin
// without memory of their own and may share it.
std::vector<Tensor> tape_gradients(const Function& f, const std::vector<Tensor>& inputs,
                                   const std::vector<bool>& wanted, const Tensor& projection,
                                   double present, bool recorded) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    if (wanted[i]) requires_gradient(leaves[i]);
  }
  for (size_t i = 0; present != 0 && i < leaves.size(); ++i) {
    if (!wanted[i]) continue;
    Tape tape;
    tape.backward(sum(affine(leaves[i], present, 0)));
  }
  Tape tape;
  std::vector<Tensor> given = leaves;
  if (recorded)
    for (size_t i = 0; i < leaves.size(); ++i)
      if (wanted[i]) given[i] = affine(leaves[i], 1, 0);
  tape.backward(sum(f(given) * projection));
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < leaves.size(); ++i)
    gradients.push_back(wanted[i] ? gradient(leaves[i]) : Tensor{});
  return gradients;
}

class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  void compare(const char* round, size_t input, const Tensor& analytic,
               const std::vector<double>& numeric, double present) {
    for (size_t k = 0; k < numeric.size(); ++k) {
      const double a = (analytic.defined() ? analytic.data<double>()[k] : 0) - present;
      const double scale = std::max({1.0, std::abs(a), std::abs(numeric[k])});
      const double error = std::abs(a - numeric[k]) / scale;
      if (error <= result.worst) continue;  // false for NaN, which is the worst of all
      result.worst = std::isnan(error) ? INFINITY : error;
      result.input = input;
      std::ostringstream text;
      text.imbue(std::locale::classic());
      text.precision(10);
      text << "input " << input << ", element " << k << " (" << round << "): analytic " << a
           << ", numeric " << numeric[k];
      result.message = text.str();
      result.passed = result.worst <= tolerance_;
    }
  }
  GradcheckResult result;

 private:
  double tolerance_;
};

}  // namespace

GradcheckResult gradcheck(const Function& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  // Every call of f starts from the same random keys.
  const Function same_keys = [&f](const std::vector<Tensor>& x) {
    const RandomScope keys({1, Purpose::dropout, 0, 0});
    return f(x);
  };
  std::vector<bool> floating;
  for (const Tensor& input : inputs) {
    check(input.dtype() == DType::f64 || !is_floating(input.dtype()),
          "gradcheck: inputs must be f64, got ", input.dtype());
    floating.push_back(is_floating(input.dtype()));
  }
  Tensor projection;
  {
    const Pause pause;
    projection = same_keys(inputs).empty_like();
  }
  kernels::fill_normal(projection, 0, 1, RandomKey{options.seed, Purpose::initialization, 0, 0});

  std::vector<std::vector<double>> numeric(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (floating[i]) numeric[i] = numeric_gradient(same_keys, inputs, i, projection, options.step);

  Comparison comparison(options.tolerance);
  const auto run = [&](const char* round, const std::vector<bool>& wanted, double present,
                       bool recorded = false) {
    const auto gradients = tape_gradients(same_keys, inputs, wanted, projection, present, recorded);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (wanted[i]) comparison.compare(round, i, gradients[i], numeric[i], present);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!floating[i]) continue;
    std::vector<bool> wanted(inputs.size(), false);
    wanted[i] = true;
    run("alone", wanted, 0);
  }
  run("together", floating, 0);
  run("onto an existing gradient", floating, 0.5);
  run("as results of an operation", floating, 0, true);
  return comparison.result;
}

}  // namespace tapeformer
