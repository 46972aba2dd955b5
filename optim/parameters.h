// All parameters of a model in one flat buffer and all their gradients in another: the gradient
// norm is one reduction, the update one kernel.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "layers/module.h"

namespace tapeformer {

/// Of a 16-bit model the flat buffers are f32: they hold the master weights, from which the model's
/// are rounded (Micikevicius et al. 2018, section 3.1). So to set a weight of such a model, set its
/// part of values() and call round_weights(); what is written to the model's own tensor, the next
/// step overwrites. As a Module it has the model's tensors by their names, the master weights among
/// them: what a checkpoint saves and loads.
class Parameters : public Module {
 public:
  struct Entry {
    std::string name;
    Tensor tensor;   // the model's
    int64_t offset;  // elements, in values() and gradients()
  };

  /// Moves the model's parameters into the flat buffer, those with two or more dimensions first:
  /// they decay, the rest (biases, gains) does not. Frees each old buffer as it goes, so
  /// construction needs no second copy of the model. Throws when there is no parameter, or when
  /// dtypes or devices differ.
  explicit Parameters(Module& model);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const Tensor& values() const { return values_; }  // [n]
  /// The part of values() that belongs to entry i, in its shape.
  Tensor value(size_t i) const;
  /// [n]. Parameters that no backward has reached since zero_gradients() read as zero.
  const Tensor& gradients() const;
  int64_t size() const { return values_.numel(); }
  /// Elements [0, decaying()) decay.
  int64_t decaying() const { return decaying_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// Of the model's parameters.
  DType dtype() const { return entries_[0].tensor.dtype(); }

  /// Marks every gradient unwritten; nothing is filled.
  void zero_gradients();
  /// [n], the weights of a 16-bit model; undefined of another one.
  const Tensor& rounded() const { return rounded_; }
  /// Rounds values() to the weights of a 16-bit model: to be called when they have changed.
  /// An optimizer's step does.
  void round_weights();
  void visit(Visitor& visitor) override;

 private:
  std::vector<NamedTensor> tensors_;  // the model's, buffers too, in the order of the visit
  std::vector<Entry> entries_;
  Tensor values_, gradients_;
  Tensor rounded_;  // where the weights of a 16-bit model lie; otherwise they lie in values_
  int64_t decaying_ = 0;
};

}  // namespace tapeformer
