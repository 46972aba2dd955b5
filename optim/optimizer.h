// Optimizers over flat parameters, and gradient clipping by the global norm.
#pragma once

#include <functional>
#include <string>

#include "optim/parameters.h"

namespace tapeformer {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Clips the gradients to a global norm of `max_norm` (0: no clipping; Pascanu et al. 2013) and
  /// updates the parameters, both in one pass over memory. Returns the norm before clipping; when
  /// that is not finite, nothing is updated. gradient_scale: by how much the gradients are too
  /// large (loss_scale.h); the norm is that without it.
  double step(double lr, double max_norm = 0, double gradient_scale = 1);

  /// step() without waiting for the device: the norm arrives in norm(). Where it or one of `losses`
  /// [n] (optional) is not finite, nothing is updated, neither now nor in the steps started after
  /// it, until set_steps(): so none changes anything before somebody has read the numbers.
  void start_step(double lr, double max_norm, double gradient_scale, const Tensor& losses = {});
  /// [1], of the last step, before clipping.
  const Tensor& norm() const { return norm_; }

  /// The number of updates so far.
  int64_t steps() const { return steps_; }
  /// Goes on after so many updates, also where numbers that were not finite have stopped them.
  void set_steps(int64_t steps);
  /// Every state tensor by name, one view per parameter ("m.blocks.0.norm1.weight"): what a
  /// checkpoint stores beside steps().
  virtual void visit_state(
      const std::function<void(const std::string& name, const Tensor& tensor)>& f) = 0;

 protected:
  explicit Optimizer(Parameters& parameters);
  /// Updates elements [begin, end) of the flat buffers. factor [1] multiplies the gradients. On a
  /// GPU it may be NaN, and then nothing may change.
  virtual void update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) = 0;
  /// Whether update() writes Parameters::rounded() too; if not, it is written afterwards.
  virtual bool rounds() const { return false; }
  Parameters& parameters_;
  int64_t steps_ = 0;

 private:
  Tensor sum_of_squares_, norm_, factor_;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};

/// Loshchilov & Hutter 2019, algorithm 2. Parameters with fewer than two dimensions do not decay.
class AdamW : public Optimizer {
 public:
  explicit AdamW(Parameters& parameters, const AdamWOptions& options = {});
  void visit_state(const std::function<void(const std::string&, const Tensor&)>& f) override;

 private:
  void update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) override;
  bool rounds() const override { return true; }
  AdamWOptions options_;
  Tensor m_, v_;
};

struct SGDOptions {
  double momentum = 0, weight_decay = 0;
};

/// With momentum, in PyTorch's form, where the rate stays outside the velocity:
///   g = gradient + weight_decay p, velocity = momentum velocity + g, p = p - lr velocity.
/// Parameters with fewer than two dimensions do not decay.
class SGD : public Optimizer {
 public:
  explicit SGD(Parameters& parameters, const SGDOptions& options = {});
  void visit_state(const std::function<void(const std::string&, const Tensor&)>& f) override;

 private:
  void update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) override;
  bool rounds() const override { return true; }
  SGDOptions options_;
  Tensor velocity_;
};

}  // namespace tapeformer
