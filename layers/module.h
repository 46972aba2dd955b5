// What a model is made of: structs with tensors that can list them by name. One visitor drives
// initialisation, counting, saving, loading, moving and the optimizer's groups.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

/// Parameters are trained. Buffers (running statistics) are saved, moved and resumed, but never
/// optimised.
enum class Role { parameter, buffer };

class Module;

/// Carries a function through a module's tree and builds the names: `blocks.3.norm1.weight`.
class Visitor {
 public:
  using Function = std::function<void(const std::string& name, const Tensor& tensor, Role role)>;
  using ModuleFunction = std::function<void(const std::string& name, Module& module)>;
  explicit Visitor(Function function, ModuleFunction on_module = {})
      : function_(std::move(function)), on_module_(std::move(on_module)) {}

  void parameter(const std::string& name, const Tensor& tensor) {
    visit(name, tensor, Role::parameter);
  }
  void buffer(const std::string& name, const Tensor& tensor) { visit(name, tensor, Role::buffer); }
  void module(const std::string& name, Module& module);

 private:
  void visit(const std::string& name, const Tensor& tensor, Role role) {
    if (tensor.defined()) function_(prefix_ + name, tensor, role);
  }
  Function function_;
  ModuleFunction on_module_;
  std::string prefix_;
};

class Module {
 public:
  virtual ~Module() = default;
  /// Reports every tensor and sub-module to the visitor, each once. Undefined tensors are skipped.
  virtual void visit(Visitor& visitor) = 0;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
  Role role;
};

/// Every tensor of the module, in visiting order.
std::vector<NamedTensor> named_tensors(Module& module);
std::vector<NamedTensor> named_parameters(Module& module);
struct NamedModule {
  std::string name;
  Module* module;
};
/// Every sub-module, in visiting order: for finding those of one type.
std::vector<NamedModule> named_modules(Module& module);
/// Number of trained numbers.
int64_t parameter_count(Module& module);

/// A parameter of the given shape, filled with a value: an f32 leaf that backward reaches.
Tensor make_parameter(const Shape& shape, double value = 0);
/// Draws every parameter with two or more dimensions from N(0, deviation^2), by seed; biases and
/// gains stay as they are.
void initialize(Module& module, uint64_t seed,
                const std::function<double(const std::string& name)>& deviation);
/// Copies every tensor of `from` that `to` has too, by name and shape; returns the names of the
/// tensors of `to` that stayed as they were.
std::vector<std::string> copy_tensors(Module& from, Module& to);
/// Converts every floating tensor of the module, for all handles; their gradients start unwritten.
/// Buffers hold statistics and get at least f32. Before Parameters takes them over. Throws for
/// f64 on a GPU.
void convert(Module& module, DType dtype, Device device = Device::cpu);

}  // namespace tapeformer
