// Trading time for memory: forget a function's activations and compute them again in backward
// (Chen et al. 2016, "Training deep nets with sublinear memory cost").
#pragma once

#include <functional>

#include "autograd/tape.h"

namespace tapeformer {

/// True while recompute() runs a function for the second time: running statistics must not be
/// updated again.
bool recomputing();

/// f(x), keeping only x: backward runs f again. Random keys repeat, so dropout does too. f may use
/// parameters freely, but other tensors that need a gradient must come in through x; otherwise the
/// second run throws.
Tensor recompute(const std::function<Tensor(const Tensor&)>& f, const Tensor& x);
/// The same with several inputs and outputs.
std::vector<Tensor> recompute(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs);

}  // namespace tapeformer
