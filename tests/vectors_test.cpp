// Every operation and optimizer against PyTorch: outputs and gradients from
// vectors/operations.json, in f64 to eleven digits and in f32 to five.
#include "tests/vectors/vectors.h"

#include <functional>

#include "autograd/ops.h"
#include "optim/optimizer.h"

namespace tapeformer {
namespace {

using vectors::expect_close;
using vectors::Named;
using vectors::tensor_from;
using vectors::tensors_from;

struct Precision {
  DType dtype;
  double tolerance;
};
constexpr Precision precisions[] = {{DType::f64, 1e-11}, {DType::f32, 1e-5}};

const nlohmann::json& reference() {
  static const nlohmann::json held = vectors::read_json("operations.json");
  return held;
}

/// Runs f on the case's inputs and compares its output and the gradients of all inputs.
void expect_case(const std::string& name,
                 const std::function<Tensor(Named& inputs, Named& integers)>& f) {
  const auto& held = reference().at("cases").at(name);
  for (const auto& [dtype, tolerance] : precisions) {
    Named inputs = tensors_from(held.at("inputs"), dtype);
    Named integers = tensors_from(held.at("integers"), DType::i32);
    for (const auto& [key, input] : inputs) requires_gradient(input);
    Tape tape;
    const Tensor output = f(inputs, integers);
    expect_close(name, output, tensor_from(held.at("output"), DType::f64), tolerance);
    const Tensor from = tensor_from(held.at("output_gradient"), dtype).view(output.shape());
    tape.backward_from({&output, 1}, {&from, 1});
    const Named gradients = tensors_from(held.at("gradients"), DType::f64);
    REQUIRE(gradients.size() == inputs.size());
    for (const auto& [key, expected] : gradients) {
      REQUIRE(gradient(inputs.at(key)).defined());
      expect_close(name + ", gradient of " + key, gradient(inputs.at(key)), expected, tolerance);
    }
  }
}

void expect_unary(const std::string& name, Tensor (*f)(const Tensor&),
                  const char* input = "input") {
  expect_case(name, [&](Named& in, Named&) { return f(in.at(input)); });
}

TEST_CASE("activations_equal_pytorch") {
  expect_unary("gelu", gelu);
  expect_unary("gelu_tanh", gelu_tanh, "x");
  expect_unary("silu", silu);
  expect_unary("sigmoid", sigmoid);
  expect_unary("tanh", tanh);
  expect_unary("swiglu", swiglu, "x");
}

TEST_CASE("softmax_equals_pytorch") {
  expect_case("softmax", [](Named& in, Named&) { return softmax(in["x"]); });
  expect_case("softmax_over_rows", [](Named& in, Named&) { return softmax(in["x"], 0); });
  expect_case("log_softmax", [](Named& in, Named&) { return log_softmax(in["x"]); });
  expect_case("log_softmax_over_rows", [](Named& in, Named&) { return log_softmax(in["x"], 0); });
}

TEST_CASE("norms_equal_pytorch") {
  for (const char* name : {"layer_norm", "layer_norm_far_from_zero"})
    expect_case(name,
                [](Named& in, Named&) { return layer_norm(in["x"], in["gamma"], in["beta"]); });
  expect_case("layer_norm_plain", [](Named& in, Named&) { return layer_norm(in["x"], {}, {}); });
  expect_case("rms_norm", [](Named& in, Named&) { return rms_norm(in["x"], in["gamma"]); });
}

TEST_CASE("products_equal_pytorch") {
  expect_case("linear",
              [](Named& in, Named&) { return linear(in["input"], in["weight"], in["bias"]); });
  expect_case("linear_no_bias",
              [](Named& in, Named&) { return linear(in["input"], in["weight"]); });
  for (const char* name : {"matmul", "matmul_shared"})
    expect_case(name, [](Named& in, Named&) { return matmul(in["input"], in["other"]); });
  expect_case("matmul_transposed",
              [](Named& in, Named&) { return matmul(in["a"], in["b"], true, true); });
}

/// [B, T, H, D] -> [B, T, H D].
Tensor merge_heads(const Tensor& x) {
  return reshape(x, {x.dim(0), x.dim(1), x.dim(2) * x.dim(3)});
}

void expect_attention(const std::string& name, bool causal) {
  expect_case(name, [&](Named& in, Named& integers) {
    const AttentionOptions options{.heads = in["q"].dim(2),
                                   .kv_heads = in["k"].dim(2),
                                   .causal = causal,
                                   .lengths = integers["lengths"]};
    return attention(merge_heads(in["q"]), merge_heads(in["k"]), merge_heads(in["v"]), options);
  });
}

TEST_CASE("attention_equals_pytorch") {
  for (const char* name : {"attention", "attention_one_kv_head", "attention_padded"})
    expect_attention(name, false);
  for (const char* name : {"attention_causal", "attention_causal_later_queries",
                           "attention_grouped", "attention_causal_padded", "attention_causal_long"})
    expect_attention(name, true);
}

TEST_CASE("packed_attention_equals_pytorch") {
  for (const char* name : {"attention_causal", "attention_grouped"})
    expect_case(name, [](Named& in, Named&) {
      const AttentionOptions options{
          .heads = in["q"].dim(2), .kv_heads = in["k"].dim(2), .causal = true};
      const Tensor packed =
          concat({merge_heads(in["q"]), merge_heads(in["k"]), merge_heads(in["v"])}, 2);
      return attention(packed, options);
    });
}

TEST_CASE("rotary_positions_equal_the_formula_in_pytorch") {
  const auto turn = [](const Tensor& x, int64_t start) {
    return rotary(merge_heads(x), x.dim(2), x.dim(3), start);
  };
  expect_case("rotary", [&](Named& in, Named&) { return turn(in["x"], 0); });
  expect_case("rotary_from_100", [&](Named& in, Named&) { return turn(in["x"], 100); });
}

TEST_CASE("embedding_and_cross_entropy_equal_pytorch") {
  expect_case("embedding", [](Named& in, Named& integers) {
    return embedding(in["table"], integers["indices"]);
  });
  const auto loss = [](double smoothing) {
    return [=](Named& in, Named& integers) {
      return cross_entropy(in["logits"], integers["targets"], {.smoothing = smoothing});
    };
  };
  expect_case("cross_entropy", loss(0));
  expect_case("cross_entropy_ignoring", loss(0));
  expect_case("cross_entropy_smoothed", loss(0.1));
  expect_case("cross_entropy_ignoring_smoothed", loss(0.1));
  for (const size_t chunk_bytes : {size_t{64} << 20, size_t{1}})
    expect_case("linear_cross_entropy", [&](Named& in, Named& integers) {
      return linear_cross_entropy(in["x"], in["weight"], integers["targets"], {}, chunk_bytes);
    });
}

struct TwoParameters : Module {
  Tensor weight, bias;
  void visit(Visitor& visitor) override {
    visitor.parameter("weight", weight);
    visitor.parameter("bias", bias);
  }
};

/// Runs the case's steps; sum(parameter * g) is a loss with the gradient g.
template <class Optimizer, class Options>
void expect_optimizer(const std::string& name, double lr, double max_norm, const Options& options) {
  const auto& held = reference().at("optimizers").at(name);
  for (const auto& [dtype, tolerance] : precisions) {
    TwoParameters model;
    const Named initial = tensors_from(held.at("initial"), dtype);
    model.weight = requires_gradient(initial.at("weight"));
    model.bias = requires_gradient(initial.at("bias"));
    Parameters parameters(model);
    Optimizer optimizer(parameters, options);
    for (const auto& step : held.at("steps")) {
      const Named gradients = tensors_from(step.at("gradients"), dtype);
      parameters.zero_gradients();
      Tape tape;
      tape.backward(sum(model.weight * gradients.at("weight")) +
                    sum(model.bias * gradients.at("bias")));
      const double norm = optimizer.step(lr, max_norm);
      CHECK(std::abs(norm / step.at("norm").get<double>() - 1) <= tolerance);
      const Named expected = tensors_from(step.at("parameters"), DType::f64);
      expect_close(name + ", weight", model.weight, expected.at("weight"), tolerance);
      expect_close(name + ", bias", model.bias, expected.at("bias"), tolerance);
    }
  }
}

TEST_CASE("adamw_equals_pytorch") {
  const AdamWOptions options{.beta2 = 0.99, .weight_decay = 0.1};
  expect_optimizer<AdamW>("adamw", 0.01, 0, options);
  expect_optimizer<AdamW>("adamw_clipped", 0.01, 1, options);
}

TEST_CASE("sgd_equals_pytorch") {
  expect_optimizer<SGD>("sgd", 0.1, 0, SGDOptions{});
  expect_optimizer<SGD>("sgd_momentum", 0.1, 0, SGDOptions{.momentum = 0.9, .weight_decay = 0.01});
  expect_optimizer<SGD>("sgd_clipped", 0.1, 2, SGDOptions{});
}

}  // namespace
}  // namespace tapeformer
