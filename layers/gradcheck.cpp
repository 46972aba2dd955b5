#include "layers/gradcheck.h"

#include <span>

namespace tapeformer {
namespace {

// The parameters of a module, which stand for other tensors while this lives: they share their
// memory and their gradient.
class StandIns {
 public:
  explicit StandIns(Module& module) : parameters_(named_parameters(module)) {
    for (const NamedTensor& parameter : parameters_) {
      values_.push_back(parameter.tensor.detach());
      gradients_.emplace_back(parameter.tensor.gradient_state());
    }
  }
  ~StandIns() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].tensor.become(values_[i]);
      parameters_[i].tensor.set_gradient_state(gradients_[i]);
    }
  }
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

  const std::vector<Tensor>& values() const { return values_; }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  void stand_for(std::span<const Tensor> others) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].tensor.become(others[i]);
      parameters_[i].tensor.set_gradient_state(Ref<GradientState>(others[i].gradient_state()));
    }
  }

 private:
  std::vector<NamedTensor> parameters_;
  std::vector<Tensor> values_;
  std::vector<Ref<GradientState>> gradients_;
};

}  // namespace

GradcheckResult gradcheck(Module& module,
                          const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  for (const NamedTensor& parameter : named_parameters(module))
    check(parameter.tensor.dtype() == DType::f64, "gradcheck: the parameter ", parameter.name,
          " must be f64, got ", parameter.tensor.dtype(),
          "; call convert(module, DType::f64) first");
  const StandIns parameters(module);
  std::vector<Tensor> all = inputs;
  all.insert(all.end(), parameters.values().begin(), parameters.values().end());
  GradcheckResult result = gradcheck(
      [&](const std::vector<Tensor>& in) {
        parameters.stand_for(std::span(in).subspan(inputs.size()));
        return f({in.begin(), in.begin() + static_cast<int64_t>(inputs.size())});
      },
      all, options);
  if (result.input >= inputs.size() && !result.message.empty())
    result.message.replace(0, ("input " + std::to_string(result.input)).size(),
                           "parameter " + parameters.name(result.input - inputs.size()));
  return result;
}

}  // namespace tapeformer
