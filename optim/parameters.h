// All parameters of a model in one flat buffer and all their gradients in another: the gradient
// norm is one reduction, the update one kernel.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "layers/module.h"

namespace tapeformer {

class Parameters {
 public:
  struct Entry {
    std::string name;
    Tensor tensor;
    int64_t offset;  // elements, in values() and gradients()
  };

  /// Moves the model's parameters into the flat buffer, those with two or more dimensions first:
  /// they decay, the rest (biases, gains) does not. Frees each old buffer as it goes, so
  /// construction needs no second copy of the model. Throws when there is no parameter, or when
  /// dtypes or devices differ.
  explicit Parameters(Module& model);

  const Tensor& values() const { return values_; }  // [n]
  /// [n]. Parameters that no backward has reached since zero_gradients() read as zero.
  const Tensor& gradients() const;
  int64_t size() const { return values_.numel(); }
  /// Elements [0, decaying()) decay.
  int64_t decaying() const { return decaying_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Marks every gradient unwritten; nothing is filled.
  void zero_gradients();

 private:
  std::vector<Entry> entries_;
  Tensor values_, gradients_;
  int64_t decaying_ = 0;
};

}  // namespace tapeformer
