#include "layers/module.h"

#include <map>

#include "autograd/tape.h"
#include "core/kernels.h"

namespace tapeformer {

void Visitor::module(const std::string& name, Module& module) {
  const size_t length = prefix_.size();
  if (on_module_) on_module_(prefix_ + name, module);
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

std::vector<NamedModule> named_modules(Module& module) {
  std::vector<NamedModule> result;
  Visitor visitor([](const std::string&, const Tensor&, Role) {},
                  [&](const std::string& name, Module& part) {
                    result.push_back({name, &part});
                  });
  module.visit(visitor);
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

std::vector<std::string> copy_tensors(Module& from, Module& to) {
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : named_tensors(from)) given[entry.name] = entry.tensor;
  std::vector<std::string> kept;
  for (const NamedTensor& entry : named_tensors(to)) {
    const auto found = given.find(entry.name);
    if (found != given.end() && found->second.shape() == entry.tensor.shape())
      entry.tensor.copy_from(found->second);
    else
      kept.push_back(entry.name);
  }
  return kept;
}

void convert(Module& module, DType dtype, Device device) {
  check(dtype != DType::f64 || device == Device::cpu,
        "convert: a GPU computes in f32, bf16 or f16, not in f64; use the CPU");
  for (const auto& [name, tensor, role] : named_tensors(module)) {
    if (!is_floating(tensor.dtype())) continue;
    const bool statistics = role == Role::buffer && size_of(dtype) < size_of(DType::f32);
    const Tensor converted = Tensor::empty(tensor.shape(), statistics ? DType::f32 : dtype, device);
    converted.copy_from(tensor);
    tensor.become(converted);
    tensor.set_gradient_state({});
    if (role == Role::parameter) requires_gradient(tensor);
  }
}

}  // namespace tapeformer
