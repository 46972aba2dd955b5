#include "layers/norm.h"

#include "autograd/recompute.h"
#include "layers/registry.h"

namespace tapeformer {

NormContext::NormContext(const Context& context)
    : lengths(context.lengths),
      training(context.training),
      recomputing(tapeformer::recomputing()) {}

SumAndNorm Norm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                             const NormContext& context) {
  const Tensor sum = (alpha == 1 ? residual : alpha * residual) + x;
  return {sum, forward(sum, context)};
}

LayerNorm::LayerNorm(int64_t channels, bool with_bias, double epsilon)
    : weight(make_parameter({channels}, 1)),
      bias(with_bias ? make_parameter({channels}) : Tensor{}),
      epsilon(epsilon) {}

Tensor LayerNorm::forward(const Tensor& x, const NormContext&) {
  return layer_norm(x, weight, bias, epsilon);
}

SumAndNorm LayerNorm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                  const NormContext&) {
  return add_layer_norm(residual, x, alpha, weight, bias, epsilon);
}

void LayerNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
}

RMSNorm::RMSNorm(int64_t channels, double epsilon)
    : weight(make_parameter({channels}, 1)), epsilon(epsilon) {}

Tensor RMSNorm::forward(const Tensor& x, const NormContext&) {
  return rms_norm(x, weight, epsilon);
}

SumAndNorm RMSNorm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                                const NormContext&) {
  return add_rms_norm(residual, x, alpha, weight, epsilon);
}

void RMSNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight); }

namespace {

Registry<NormFactory>& norms() {
  static Registry<NormFactory> registry(
      "norm",
      {
          {"layernorm", [](int64_t c) { return std::make_unique<LayerNorm>(c); }},
          {"layernorm-nobias", [](int64_t c) { return std::make_unique<LayerNorm>(c, false); }},
          {"rmsnorm", [](int64_t c) { return std::make_unique<RMSNorm>(c); }},
          {"none", [](int64_t) { return std::make_unique<NoNorm>(); }},
      });
  return registry;
}

}  // namespace

NormFactory find_norm(const std::string& name) { return norms().find(name); }
std::vector<std::string> norm_names() { return norms().names(); }
void register_norm(const std::string& name, NormFactory factory) {
  norms().add(name, std::move(factory));
}

}  // namespace tapeformer
