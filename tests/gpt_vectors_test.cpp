// A tiny GPT against the same model in PyTorch, from the same weights: the first step's gradients
// and ten losses under clipping and AdamW, for the GPT-2 and the LLaMA shape.
#include "layers/gpt.h"
#include "optim/optimizer.h"
#include "tests/vectors/vectors.h"

namespace tapeformer {
namespace {

using vectors::expect_close;
using vectors::Named;

TransformerConfig config_from(const nlohmann::json& held) {
  TransformerConfig config{.vocabulary = held.at("vocabulary"),
                           .context = held.at("context"),
                           .layers = held.at("layers"),
                           .heads = held.at("heads"),
                           .kv_heads = held.at("kv_heads"),
                           .channels = held.at("channels"),
                           .hidden = held.at("hidden")};
  if (held.at("llama").get<bool>()) {
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.bias = config.tied = false;
  }
  return config;
}

/// Rows of T + 1 tokens: the first T are the input, the last T the targets.
std::pair<Tensor, Tensor> split_batch(const nlohmann::json& rows) {
  std::vector<int32_t> tokens, targets;
  for (const auto& held : rows) {
    const auto row = held.get<std::vector<int32_t>>();
    tokens.insert(tokens.end(), row.begin(), row.end() - 1);
    targets.insert(targets.end(), row.begin() + 1, row.end());
  }
  const auto batch = static_cast<int64_t>(rows.size());
  const Shape shape{batch, static_cast<int64_t>(tokens.size()) / batch};
  return {Tensor::from(tokens, shape), Tensor::from(targets, shape)};
}

void load_weights(GPT& model, const Named& weights) {
  const auto parameters = named_parameters(model);
  REQUIRE(parameters.size() == weights.size());
  for (const auto& [name, tensor, role] : parameters) {
    INFO(name);
    REQUIRE(weights.count(name) == 1);
    REQUIRE(weights.at(name).shape() == tensor.shape());
    tensor.copy_from(weights.at(name));
  }
}

void expect_pytorch_run(const std::string& shape, DType dtype, double tolerance) {
  const nlohmann::json all = vectors::read_json("gpt.json");
  const auto &held = all.at(shape), &training = all.at("training");
  GPT model(config_from(held.at("config")));
  convert(model, dtype);
  load_weights(model, vectors::read_safetensors(shape + "_weights.safetensors"));
  Parameters parameters(model);
  AdamW optimizer(parameters, {.beta1 = training.at("beta1"),
                               .beta2 = training.at("beta2"),
                               .epsilon = training.at("epsilon"),
                               .weight_decay = training.at("weight_decay")});
  const auto losses = held.at("losses").at(name_of(dtype)).get<std::vector<double>>();
  const auto norms = held.at("gradient_norms").at(name_of(dtype)).get<std::vector<double>>();
  REQUIRE(losses.size() == 10);
  for (size_t step = 0; step < losses.size(); ++step) {
    INFO(shape << ", " << name_of(dtype) << ", step " << step + 1);
    const auto [tokens, targets] = split_batch(held.at("batches").at(step));
    parameters.zero_gradients();
    Tape tape;
    const Tensor loss = model.loss(tokens, targets);
    tape.backward(loss);
    if (step == 0) {
      const Named expected = vectors::read_safetensors(shape + "_gradients.safetensors");
      for (const auto& [name, tensor, offset] : parameters.entries())
        expect_close(name, gradient(tensor), expected.at(name), tolerance);
    }
    const double norm = optimizer.step(training.at("lr"), training.at("clip"));
    CHECK(std::abs(loss.item() / losses[step] - 1) <= tolerance);
    CHECK(std::abs(norm / norms[step] - 1) <= tolerance);
  }
}

TEST_CASE("gpt2_trains_as_in_pytorch") {
  expect_pytorch_run("gpt2", DType::f64, 1e-10);
  expect_pytorch_run("gpt2", DType::f32, 1e-5);
}

TEST_CASE("llama_trains_as_in_pytorch") {
  expect_pytorch_run("llama", DType::f64, 1e-10);
  expect_pytorch_run("llama", DType::f32, 1e-5);
}

}  // namespace
}  // namespace tapeformer
