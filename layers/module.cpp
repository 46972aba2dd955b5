#include "layers/module.h"

#include "autograd/tape.h"
#include "core/kernels.h"

namespace tapeformer {

void Visitor::module(const std::string& name, Module& module) {
  const size_t length = prefix_.size();
  prefix_ += name + ".";
  module.visit(*this);
  prefix_.resize(length);
}

std::vector<NamedTensor> named_tensors(Module& module) {
  std::vector<NamedTensor> result;
  Visitor visitor([&](const std::string& name, const Tensor& tensor, Role role) {
    result.push_back({name, tensor, role});
  });
  module.visit(visitor);
  return result;
}

std::vector<NamedTensor> named_parameters(Module& module) {
  std::vector<NamedTensor> result = named_tensors(module);
  std::erase_if(result, [](const NamedTensor& entry) { return entry.role != Role::parameter; });
  return result;
}

int64_t parameter_count(Module& module) {
  int64_t count = 0;
  for (const NamedTensor& entry : named_parameters(module)) count += entry.tensor.numel();
  return count;
}

Tensor make_parameter(const Shape& shape, double value) {
  return requires_gradient(Tensor::full(shape, value));
}

void initialize(Module& module, uint64_t seed,
                const std::function<double(const std::string& name)>& deviation) {
  RandomKey key{seed, Purpose::initialization, 0, 0};
  for (const auto& [name, tensor, role] : named_parameters(module)) {
    ++key.operation;
    if (tensor.rank() >= 2) kernels::fill_normal(tensor, 0.0, deviation(name), key);
  }
}

void convert(Module& module, DType dtype, Device device) {
  for (const auto& [name, tensor, role] : named_tensors(module)) {
    if (!is_floating(tensor.dtype())) continue;
    const Tensor converted = Tensor::empty(tensor.shape(), dtype, device);
    converted.copy_from(tensor);
    tensor.become(converted);
    tensor.set_gradient_state({});
    if (role == Role::parameter) requires_gradient(tensor);
  }
}

}  // namespace tapeformer
