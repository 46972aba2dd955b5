#include "layers/initialization.h"

#include <cmath>
#include <map>

#include "core/kernels.h"
#include "layers/attention.h"
#include "layers/stack.h"

namespace tapeformer {
namespace {

double xavier(int64_t inputs, int64_t outputs) { return std::sqrt(2.0 / (inputs + outputs)); }

bool writes_to_stream(const std::string& name) {
  return name.ends_with("attention.output.weight") || name.ends_with("ffn.down.weight");
}

bool is_queries_keys_values(const std::string& name) {
  return name.ends_with("attention.qkv.weight");
}

bool is_keys_values(const std::string& name) {
  return name.ends_with("cross_attention.key_value.weight");
}

// The stack that a weight is in.
StackShape stack_of(const std::string& name, const TransformerConfig& config) {
  if (name.starts_with("encoder.")) return encoder_shape(config);
  if (name.starts_with("decoder.")) return decoder_shape(config);
  return {.blocks = config.layers};
}

// Standard deviations for one configuration.
struct Deviations {
  const TransformerConfig& config;
  Placement placement;
  bool by_xavier;
  bool has_decoder;

  double embedding(const std::string& name) const {
    if (has_decoder)
      return name.find("position") == name.npos
                 ? 1 / std::sqrt(static_cast<double>(config.channels))
                 : std::sqrt(0.5);
    if (!by_xavier) return 0.02;
    return config.tied ? 1 / std::sqrt(static_cast<double>(config.channels)) : std::sqrt(0.5);
  }
  double linear(const std::string& name, const Shape& shape) const {
    const double gain = writes_to_stream(name) ? placement.output_gain(stack_of(name, config)) : 1;
    if (!by_xavier) return 0.02 * gain;
    int64_t outputs = shape[0];
    if (is_queries_keys_values(name)) outputs = config.channels;  // the queries' share
    if (is_keys_values(name)) outputs /= 2;
    if (name.ends_with("ffn.up.weight") && config.activation == "swiglu") outputs /= 2;
    return xavier(shape[1], outputs);
  }
  double operator()(const std::string& name, const Shape& shape) const {
    if (name.find("embedding") != std::string::npos) return embedding(name);
    const bool in_branch = writes_to_stream(name) || name.ends_with("ffn.up.weight");
    return linear(name, shape) * (in_branch ? placement.branch_gain(stack_of(name, config)) : 1);
  }
};

void scale(const Tensor& rows, double factor) {
  kernels::affine(rows, factor, 0.0, Destination{rows});
}

}  // namespace

std::vector<std::string> initialization_names() { return {"normal", "xavier"}; }

void initialize(Module& model, const TransformerConfig& config, uint64_t seed) {
  const Placement placement = find_placement(config.placement);
  const std::string& scheme =
      config.initialization.empty() ? placement.initialization : config.initialization;
  check(scheme == "normal" || scheme == "xavier", "there is no initialization '", scheme,
        "'; known are ", initialization_names());
  std::map<std::string, Shape> shapes;
  bool has_decoder = false;
  for (const NamedTensor& entry : named_parameters(model)) {
    shapes[entry.name] = entry.tensor.shape();
    has_decoder = has_decoder || entry.name.starts_with("decoder.");
  }
  const Deviations deviation{config, placement, scheme == "xavier", has_decoder};
  initialize(model, seed,
             [&](const std::string& weight) { return deviation(weight, shapes.at(weight)); });
  // Queries, keys and values lie in one matrix, [(H + 2 K) D, C].
  const AttentionConfig attention = attention_config(config);
  const int64_t keys = attention.key_heads() * attention.head_size();
  const double key_gain =
      deviation.by_xavier ? xavier(config.channels, keys) / xavier(config.channels, config.channels)
                          : 1;
  for (const NamedTensor& entry : named_parameters(model)) {
    const bool with_queries = is_queries_keys_values(entry.name);
    if (!with_queries && !is_keys_values(entry.name)) continue;
    const int64_t rows = entry.tensor.dim(0);
    const Tensor weight = entry.tensor.detach();
    if (with_queries) scale(weight.rows(rows - 2 * keys, rows), key_gain);
    scale(weight.rows(rows - keys, rows), placement.branch_gain(stack_of(entry.name, config)));
  }
}

}  // namespace tapeformer
