#include "layers/norm.h"

#include "autograd/recompute.h"
#include "layers/batch_norms.h"
#include "layers/registry.h"
#include "layers/time_norms.h"
#include "layers/token_norms.h"

namespace tapeformer {

NormContext::NormContext(const Context& context)
    : lengths(context.lengths),
      training(context.training || context.batch_statistics),
      update_statistics(context.training && !recomputing()) {}

SumAndNorm Norm::add_forward(const Tensor& residual, const Tensor& x, double alpha,
                             const NormContext& context) {
  const Tensor sum = (alpha == 1 ? residual : alpha * residual) + x;
  return {sum, forward(sum, context)};
}

namespace {

// A factory of N(channels, arguments...).
template <class N, class... Arguments>
NormFactory make(Arguments... arguments) {
  return [=](int64_t channels) { return std::make_unique<N>(channels, arguments...); };
}

Registry<NormFactory>& norms() {
  using L = LayerNormOptions;
  static Registry<NormFactory> registry(
      "norm", {
                  {"layernorm", make<LayerNorm>()},
                  {"layernorm-nobias", make<LayerNorm>(L{.bias = false})},
                  {"layernorm-simple", make<LayerNorm>(L{.weight = false, .bias = false})},
                  {"layernorm-detach", make<LayerNorm>(L{.detached = true})},
                  {"rmsnorm", make<RMSNorm>()},
                  {"prmsnorm", make<PartialRMSNorm>()},
                  {"scalenorm", make<ScaleNorm>()},
                  {"adanorm", make<AdaNorm>()},
                  {"groupnorm", make<GroupNorm>()},
                  {"dyt", make<DyT>()},
                  {"none", [](int64_t) { return std::make_unique<NoNorm>(); }},
                  {"batchnorm", make<BatchNorm>()},
                  {"batchnorm-unmasked", make<BatchNorm>(/*masked=*/false)},
                  {"powernorm", make<PowerNorm>()},
                  {"powernorm-v", make<PowerNorm>(/*running_in_training=*/false)},
                  {"groupnorm-time", make<TimeGroupNorm>()},
                  {"instancenorm", make<InstanceNorm>()},
                  {"layernorm-time", make<TimeLayerNorm>()},
              });
  return registry;
}

}  // namespace

NormFactory find_norm(const std::string& name) { return norms().find(name); }
std::vector<std::string> norm_names() { return norms().names(); }
void register_norm(const std::string& name, NormFactory factory) {
  norms().add(name, std::move(factory));
}

NormFactory replace_norm(const std::string& name, NormFactory factory) {
  return norms().replace(name, std::move(factory));
}

}  // namespace tapeformer
