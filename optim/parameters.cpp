#include "optim/parameters.h"

#include <algorithm>
#include <map>

#include "autograd/tape.h"

namespace tapeformer {
namespace {

// Every parameter starts on a boundary of this many bytes, so vector loads do not straddle lines.
constexpr int64_t alignment = 64;
// From this size on, a parameter's old memory goes back to the system at once.
constexpr size_t large_parameter = size_t{1} << 20;

bool decays(const NamedTensor& parameter) { return parameter.tensor.rank() >= 2; }

Gradient& gradient_of(const Tensor& leaf) { return static_cast<Gradient&>(*leaf.gradient_state()); }

// The model's parameters, those that decay first, otherwise in the order of the visit.
std::vector<NamedTensor> checked_parameters(Module& model) {
  std::vector<NamedTensor> parameters = named_parameters(model);
  check(!parameters.empty(), "parameters: the model has none; visit() must report them");
  const NamedTensor& first = parameters[0];
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor, role] = parameters[i];
    check(is_floating(tensor.dtype()), "parameters: ", name, " is ", tensor.dtype(),
          "; only floating tensors can be trained, report others as buffers");
    check(tensor.dtype() == first.tensor.dtype(), "parameters: dtypes differ: ", first.name, " is ",
          first.tensor.dtype(), ", ", name, " is ", tensor.dtype());
    check(tensor.device() == first.tensor.device(), "parameters: devices differ: ", first.name,
          " is on ", first.tensor.device(), ", ", name, " on ", tensor.device());
    for (size_t k = 0; k < i; ++k)
      check(!tensor.is(parameters[k].tensor), "parameters: ", parameters[k].name, " and ", name,
            " are one tensor; visit() must report a tied weight once");
  }
  std::stable_partition(parameters.begin(), parameters.end(), decays);
  return parameters;
}

}  // namespace

Parameters::Parameters(Module& model) : tensors_(named_tensors(model)) {
  const std::vector<NamedTensor> parameters = checked_parameters(model);
  const DType dtype = parameters[0].tensor.dtype();
  const Device device = parameters[0].tensor.device();
  const int64_t unit = alignment / static_cast<int64_t>(size_of(dtype));
  int64_t size = 0;
  for (const NamedTensor& parameter : parameters) {
    entries_.push_back({parameter.name, parameter.tensor, size});
    size += (parameter.tensor.numel() + unit - 1) / unit * unit;
    if (decays(parameter)) decaying_ = size;
  }
  values_ = Tensor::empty({size}, wide(dtype), device);
  gradients_ = Tensor::empty({size}, wide(dtype), device);
  if (is_16bit(dtype)) rounded_ = Tensor::empty({size}, dtype, device);

  for (size_t i = 0; i < entries_.size(); ++i) {
    const Tensor& tensor = requires_gradient(entries_[i].tensor);
    const int64_t begin = entries_[i].offset, end = begin + tensor.numel();
    const int64_t next = i + 1 < entries_.size() ? entries_[i + 1].offset : size;
    // The padding is zero, so that it adds nothing to the norm and no update moves it.
    values_.rows(end, next).fill(0);
    gradients_.rows(end, next).fill(0);
    value(i).copy_from(tensor);
    tensor.rebase((rounded_.defined() ? rounded_ : values_).storage(), begin);
    Gradient& gradient = gradient_of(tensor);
    const Tensor flat = gradients_.rows(begin, end).view(tensor.shape());
    if (gradient.written) flat.copy_from(gradient.value);
    gradient.value = flat;
    if (tensor.bytes() >= large_parameter) release_cached_memory(device);
  }
  round_weights();
}

Tensor Parameters::value(size_t i) const {
  const auto& [name, tensor, offset] = entries_[i];
  return values_.rows(offset, offset + tensor.numel()).view(tensor.shape());
}

const Tensor& Parameters::gradients() const {
  const Tensor& weights = rounded_.defined() ? rounded_ : values_;
  for (const Entry& entry : entries_) {
    check(entry.tensor.storage() == weights.storage(), "parameters: ", entry.name,
          " has moved to other memory since; make Parameters once, after the model is on its "
          "device");
    Gradient& gradient = gradient_of(entry.tensor);
    if (gradient.written) continue;
    gradient.value.fill(0);
    gradient.written = true;
  }
  return gradients_;
}

void Parameters::round_weights() {
  if (rounded_.defined()) rounded_.copy_from(values_);
}

void Parameters::visit(Visitor& visitor) {
  std::map<std::string, Tensor> masters;
  for (size_t i = 0; i < entries_.size(); ++i) masters[entries_[i].name] = value(i);
  for (const auto& [name, tensor, role] : tensors_) {
    if (role == Role::buffer)
      visitor.buffer(name, tensor);
    else
      visitor.parameter(name, masters[name]);
  }
}

void Parameters::zero_gradients() {
  for (const Entry& entry : entries_) zero_gradient(entry.tensor);
}

}  // namespace tapeformer
