#include "autograd/recompute.h"

#include <memory>

#include "autograd/remember.h"

namespace tapeformer {
namespace {

thread_local bool running_again = false;

struct RunningAgain {
  RunningAgain() { running_again = true; }
  ~RunningAgain() { running_again = outer; }
  const bool outer = running_again;
};

}  // namespace

bool recomputing() { return running_again; }

std::vector<Tensor> recompute(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs) {
  Tape* tape = Tape::current();
  if (!tape) return f(inputs);

  // The first run records nothing. It sees the inputs as constants, so whatever else needs a
  // gradient is a parameter, which is fine, or belongs to another tape, which throws here.
  const RandomKey key = RandomScope::position();
  std::vector<Tensor> constants, outputs;
  for (const Tensor& input : inputs) constants.push_back(input.detach());
  const auto remembered = std::make_shared<Remembered>();
  bool parameters_used = false;
  {
    const Remembering scope(*remembered, Remembering::Run::first);
    Tape first_run;
    first_run.only_notices_ = true;
    outputs = f(constants);
    parameters_used = first_run.noticed_;
  }
  // Outputs of their own: f may have returned an input or a parameter.
  for (Tensor& output : outputs) output = output.detach();
  const bool needed = tape->needed("recompute", inputs);
  tape->noticed_ |= parameters_used;
  if (tape->only_notices_ || !(needed || parameters_used)) return outputs;
  check(!tape->consumed_, "recompute: this tape's backward has run; make a new Tape");

  tape->push("recompute", inputs, outputs,
             [f, constants, key, remembered, count = outputs.size()](BackwardPass& pass) {
               const RunningAgain flag;
               const Remembering scope(*remembered, Remembering::Run::second);
               const RandomScope random(key);
               Tape second_run;
               std::vector<Tensor> leaves;
               for (size_t i = 0; i < constants.size(); ++i) {
                 leaves.push_back(constants[i].detach());
                 if (!pass.needs(i)) continue;
                 requires_gradient(leaves[i]);
                 // They stand for values inside a graph: gradients as there, not as a parameter's.
                 static_cast<Gradient&>(*leaves[i].gradient_state()).dtype = leaves[i].dtype();
               }
               const std::vector<Tensor> results = f(leaves);
               check(results.size() == count, "recompute: the function returned ", count,
                     " tensors at first and ", results.size(), " the second time");
               std::vector<Tensor> gradients;
               for (size_t i = 0; i < results.size(); ++i)
                 gradients.push_back(needs_gradient(results[i]) ? pass.gradient(i) : Tensor{});
               second_run.backward_from(results, gradients);
               for (size_t i = 0; i < leaves.size(); ++i)
                 if (pass.needs(i)) pass.pass_on(i, gradient(leaves[i]));
             });
  return outputs;
}

Tensor recompute(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const auto one = [f](const std::vector<Tensor>& inputs) {
    return std::vector<Tensor>{f(inputs[0])};
  };
  return recompute(one, {x})[0];
}

}  // namespace tapeformer
