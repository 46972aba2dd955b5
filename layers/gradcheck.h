// Compares the backward of a module with central differences: of its inputs and of every parameter.
#pragma once

#include "autograd/gradcheck.h"
#include "layers/module.h"

namespace tapeformer {

/// gradcheck() of f, which runs the module, with respect to `inputs` and to all parameters of the
/// module; the message names a parameter as visit() does. All are f64: convert(module, DType::f64)
/// first. The module stays as it was, but for buffers that f changes.
///   gradcheck(layer, [&](const auto& in) { return layer.forward(in[0]); }, {x})
GradcheckResult gradcheck(Module& module,
                          const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace tapeformer
