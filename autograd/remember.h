// What a function found when it first ran, for when recompute() runs it again: running statistics,
// which the first run has changed since.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

/// The values that the first run of a function remembered, in their order.
using Remembered = std::vector<Tensor>;

/// f(); but within the second run of recompute(), what f returned at this place in the first one.
Tensor remember(const std::function<Tensor()>& f);

/// Fills `values` with what is remembered while in scope, or gives them back. Scopes nest: within a
/// second run, a first run of an inner recompute() remembers what was remembered before.
class Remembering {
 public:
  enum class Run { first, second };
  Remembering(Remembered& values, Run run);
  ~Remembering();
  Remembering(const Remembering&) = delete;
  Remembering& operator=(const Remembering&) = delete;

 private:
  friend Tensor remember(const std::function<Tensor()>&);
  Remembered& values_;
  const Run run_;
  size_t next_ = 0;
  Remembering* outer_;
};

}  // namespace tapeformer
