// Compares an operation's backward with central differences, in f64. For the library's tests and
// for anyone who writes an operation of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

struct GradcheckOptions {
  double step = 1e-5;       ///< of the central difference
  double tolerance = 1e-6;  ///< |analytic - numeric| <= tolerance * max(1, |analytic|, |numeric|)
  uint64_t seed = 1;        ///< of the random projection
};

struct GradcheckResult {
  bool passed = true;
  double worst = 0;     ///< largest error relative to max(1, |analytic|, |numeric|)
  size_t input = 0;     ///< of the worst error
  std::string message;  ///< which input and element, analytic and numeric, of the worst
  explicit operator bool() const { return passed; }
};

/// Checks d/d inputs of sum(f(inputs) * r), r fixed and random (a plain sum would hide the errors
/// of functions whose outputs sum to a constant, such as softmax). Inputs are f64; each is checked
/// alone, then all together, then with a gradient already present, then as the result of another
/// operation. Inputs are left as they were.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace tapeformer
