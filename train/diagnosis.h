// Finding out what is wrong with a model that does not train.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "layers/gpt.h"
#include "optim/optimizer.h"

namespace tapeformer {

/// The name of the module's first tensor with an element that is not finite; empty when there is
/// none.
std::string first_tensor_not_finite(Module& module);
/// Runs the forward pass again and names the first operation whose output is not finite, its place
/// in the order of operations, and the shape.
std::string first_operation_not_finite(Module& model, const std::function<Tensor()>& loss,
                                       const RandomKey& key);
/// Names the first parameter, in the order of the model, whose gradient is not finite.
std::string first_gradient_not_finite(const Parameters& parameters);

/// One parameter after a few updates.
struct ParameterHealth {
  std::string name;
  Shape shape;
  bool reached = false;      ///< a backward wrote its gradient
  double gradient_norm = 0;  ///< at the last step
  double update_norm = 0;    ///< of all updates together
  bool moved() const { return update_norm > 0; }
};

/// Takes `steps` training steps with AdamW at rate `lr` and reports every parameter. loss(step)
/// runs the model on that step's batch; dropout draws by `seed`.
std::vector<ParameterHealth> examine(Module& model, const std::function<Tensor(int64_t step)>& loss,
                                     int64_t steps = 2, double lr = 1e-3, uint64_t seed = 1);
/// The same on the corpus's training batches.
std::vector<ParameterHealth> examine(GPT& model, const Corpus& corpus, int64_t steps = 2,
                                     double lr = 1e-3, uint64_t seed = 1);
/// The report as a table with the names of what is wrong below it, and whether backward reached
/// every parameter and moved those with a gradient. An all-zero gradient is listed, no failure: at
/// the start of some placements it is right.
struct HealthReport {
  std::string table;
  bool healthy = true;
};
HealthReport health_report(const std::vector<ParameterHealth>& parameters);

}  // namespace tapeformer
