#include "layers/ffn.h"

#include "layers/registry.h"

namespace tapeformer {
namespace {

const Registry<Activation>& activations() {
  static const Registry<Activation> registry("activation", {{"gelu", Activation::gelu},
                                                            {"gelu_tanh", Activation::gelu_tanh},
                                                            {"relu", Activation::relu},
                                                            {"silu", Activation::silu},
                                                            {"swiglu", Activation::none}});
  return registry;
}

}  // namespace

FeedForward::FeedForward(int64_t channels, int64_t hidden, const std::string& activation, bool bias)
    : up(channels, activation == "swiglu" ? 2 * hidden : hidden, bias),
      down(hidden, channels, bias),
      gated_(activation == "swiglu"),
      activation_(activations().find(activation)) {}

std::vector<std::string> activation_names() { return activations().names(); }

int64_t default_hidden_size(int64_t channels, const std::string& activation) {
  return activation == "swiglu" ? (8 * channels / 3 + 31) / 32 * 32 : 4 * channels;
}

}  // namespace tapeformer
