// Norms under test: a training pass over one, its parameters replaced, and all the names.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "autograd/recompute.h"
#include "layers/norm.h"
#include "tests/compare.h"
#include "tests/random_tensor.h"

namespace tapeformer {

/// Every norm of the library. norm_names() knows those that other tests registered, too.
inline const std::vector<std::string> all_norms = {"layernorm",
                                                   "layernorm-nobias",
                                                   "layernorm-simple",
                                                   "layernorm-detach",
                                                   "rmsnorm",
                                                   "prmsnorm",
                                                   "scalenorm",
                                                   "adanorm",
                                                   "groupnorm",
                                                   "dyt",
                                                   "none",
                                                   "batchnorm",
                                                   "batchnorm-unmasked",
                                                   "powernorm",
                                                   "powernorm-v",
                                                   "groupnorm-time",
                                                   "instancenorm",
                                                   "layernorm-time"};

inline Tensor lengths_of(const std::vector<int32_t>& lengths) {
  return Tensor::from(lengths, {static_cast<int64_t>(lengths.size())});
}

inline NormContext training_context(const Tensor& lengths = {}) {
  NormContext context;
  context.training = true;
  context.lengths = lengths;
  return context;
}
/// Statistics of the batch, but no update.
inline NormContext looking_context(const Tensor& lengths = {}) {
  NormContext context = training_context(lengths);
  context.update_statistics = false;
  return context;
}
inline NormContext evaluation_context(const Tensor& lengths = {}) {
  NormContext context;
  context.lengths = lengths;
  return context;
}

/// A norm with random parameters: of equal names, equal numbers.
inline std::unique_ptr<Norm> random_norm(const std::string& name, int64_t channels,
                                         DType dtype = DType::f64) {
  auto norm = find_norm(name)(channels);
  convert(*norm, dtype);
  for (const NamedTensor& entry : named_parameters(*norm))
    entry.tensor.copy_from(random_tensor(entry.tensor.shape(), 100 + entry.name[0]));
  return norm;
}

/// Puts `values` in place of the norm's parameters, so that gradcheck sees them. visit() reports
/// the members themselves.
inline void substitute(Norm& norm, std::span<const Tensor> values) {
  size_t next = 0;
  Visitor visitor([&](const std::string&, const Tensor& member, Role role) {
    if (role == Role::parameter) const_cast<Tensor&>(member) = values[next++];
  });
  norm.visit(visitor);
}

/// {x, parameters...}: what gradcheck is to vary.
inline std::vector<Tensor> inputs_of(Norm& norm, const Tensor& x) {
  std::vector<Tensor> inputs = {x};
  for (const NamedTensor& entry : named_parameters(norm)) inputs.push_back(entry.tensor.clone());
  return inputs;
}
inline Tensor forward_of(Norm& norm, const std::vector<Tensor>& inputs,
                         const NormContext& context) {
  substitute(norm, std::span(inputs).subspan(1));
  return norm.forward(inputs[0], context);
}

struct NormPass {
  Tensor y, dx;
  std::vector<Tensor> gradients;  // of the parameters

  std::vector<Tensor> all() const {
    std::vector<Tensor> tensors = {y, dx};
    tensors.insert(tensors.end(), gradients.begin(), gradients.end());
    return tensors;
  }
};

/// Forward and backward from the gradient dy of y; the parameters' gradients start anew.
inline NormPass pass_of(Norm& norm, const Tensor& given, const Tensor& dy,
                        const NormContext& context) {
  const Tensor x = requires_gradient(given.detach());
  for (const NamedTensor& entry : named_parameters(norm)) zero_gradient(entry.tensor);
  Tape tape;
  const Tensor y = norm.forward(x, context);
  tape.backward_from({&y, 1}, {&dy, 1});
  NormPass pass{y.detach(), gradient(x), {}};
  for (const NamedTensor& entry : named_parameters(norm))
    pass.gradients.push_back(gradient(entry.tensor).clone());
  return pass;
}

/// The norm within recompute(), `depth` of them around each other.
struct Recomputed : Norm {
  Norm& norm;
  int depth;
  Recomputed(Norm& norm, int depth) : norm(norm), depth(depth) {}
  Tensor forward(const Tensor& x, const NormContext& context) override {
    std::function<Tensor(const Tensor&)> f = [this, context](const Tensor& x) {
      NormContext now = context;  // as a block makes it anew in each run
      now.update_statistics = context.update_statistics && !recomputing();
      return norm.forward(x, now);
    };
    for (int i = 0; i < depth; ++i)
      f = [inner = f](const Tensor& x) { return recompute(inner, x); };
    return f(x);
  }
  void visit(Visitor& visitor) override { norm.visit(visitor); }
};

/// The values of the norm's buffers.
inline std::vector<Tensor> buffers_of(Norm& norm) {
  std::vector<Tensor> buffers;
  for (const NamedTensor& entry : named_tensors(norm))
    if (entry.role == Role::buffer) buffers.push_back(entry.tensor.clone());
  return buffers;
}

inline bool all_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, same_bits);
}

inline bool all_finite(const std::vector<Tensor>& tensors) {
  return std::ranges::all_of(tensors, [](const Tensor& x) {
    return !is_floating(x.dtype()) ||
           std::ranges::all_of(values_of(x), [](double value) { return std::isfinite(value); });
  });
}

}  // namespace tapeformer
