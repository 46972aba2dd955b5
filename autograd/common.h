// What several operations share: tensors seen as rows, and gradients that one kernel computes
// together.
#pragma once

#include <array>

#include "autograd/tape.h"

namespace tapeformer {

/// The shape without its last dimension: one row for each of its elements.
inline Shape shape_of_rows(const Tensor& x) { return x.shape().range(0, x.rank() - 1); }

/// All but the last dimension taken as one: [N, C]. Reads past gradients, so only for kernels.
inline Tensor as_rows(const Tensor& x) {
  return x.detach().view(Shape{shape_of_rows(x).numel(), x.dim(-1)});
}
inline Destination as_rows(const Destination& destination) {
  if (!destination) return {};
  return {as_rows(destination.tensor), destination.accumulate};
}

/// The first of several inputs whose gradient a kernel writes wide.
struct WideFrom {
  size_t index;
};

/// For a kernel that computes the gradients of several inputs at once: calls kernel(destinations)
/// with those of the record's inputs first, first + 1 ... Two of them may be the same tensor, with
/// one gradient, and that cannot be written twice at once: then each gets memory of its own, and
/// their sum is made afterwards. Those from inputs[wide_from.index] on are wide.
template <size_t n, class F>
void write_together(BackwardPass& pass, size_t first, const std::array<Tensor, n>& inputs,
                    WideFrom wide_from, const F& kernel) {
  bool shared = false;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < i; ++j)
      shared |=
          needs_gradient(inputs[i]) && inputs[i].gradient_state() == inputs[j].gradient_state();
  std::array<Destination, n> destinations;
  for (size_t i = 0; i < n; ++i) {
    if (!pass.needs(first + i)) continue;
    const Tensor& x = inputs[i];
    if (shared)
      destinations[i] = {
          Tensor::empty(x.shape(), i < wide_from.index ? x.dtype() : wide(x.dtype()), x.device())};
    else
      destinations[i] =
          i < wide_from.index ? pass.destination(first + i) : pass.wide_destination(first + i);
  }
  kernel(destinations);
  if (!shared) return;
  for (size_t i = 0; i < n; ++i) pass.pass_on(first + i, destinations[i].tensor);
}

}  // namespace tapeformer
