// The block of docs/tour.md, written with the plain operators, against the library's fused path.
#include <map>

#include "examples/attention_by_hand.h"
#include "layers/block.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

TEST_CASE("the_block_by_hand_equals_the_fused_block_in_values_and_gradients") {
  const int64_t batch = 2, time = 9, channels = 12;
  Block fused({.context = time, .layers = 1, .heads = 3, .channels = channels, .bias = false}, 0);
  initialize(fused, 1, [](const std::string&) { return 0.4; });
  for (const NamedTensor& entry : named_parameters(fused))  // gains and biases too
    if (entry.tensor.rank() == 1)
      kernels::fill_normal(entry.tensor, 0.5, 0.5, RandomKey{.seed = entry.name.size()});
  convert(fused, DType::f64);

  std::map<std::string, Tensor> weights;
  for (const NamedTensor& entry : named_parameters(fused)) weights[entry.name] = entry.tensor;
  const auto copy = [](const Tensor& x) { return requires_gradient(x.clone()); };
  const Tensor qkv = weights["attention.qkv.weight"].detach();
  const auto part = [&](int i) { return copy(qkv.rows(i * channels, (i + 1) * channels)); };
  const BlockByHand hand{.heads = 3,
                         .norm1_weight = copy(weights["norm1.weight"]),
                         .norm1_bias = copy(weights["norm1.bias"]),
                         .query = part(0),
                         .key = part(1),
                         .value = part(2),
                         .output = copy(weights["attention.output.weight"]),
                         .norm2_weight = copy(weights["norm2.weight"]),
                         .norm2_bias = copy(weights["norm2.bias"]),
                         .up = copy(weights["ffn.up.weight"]),
                         .down = copy(weights["ffn.down.weight"])};

  const Tensor x = random_tensor({batch, time, channels}, 2);
  const Tensor dy = random_tensor({batch, time, channels}, 3);
  const Tensor x_fused = copy(x), x_hand = copy(x);
  Tensor y_fused, y_hand;
  {
    Tape tape;
    Stream stream{x_fused, {}, {}};
    fused.forward(stream, {});
    y_fused = stream.x + stream.pending;
    tape.backward_from({{y_fused}}, {{dy}});
  }
  {
    Tape tape;
    y_hand = hand.forward(x_hand);
    tape.backward_from({{y_hand}}, {{dy}});
  }

  const auto equal = [](const Tensor& a, const Tensor& b) {
    REQUIRE(a.numel() == b.numel());
    for (int64_t i = 0; i < a.numel(); ++i)
      CHECK(std::abs(a.data<double>()[i] - b.data<double>()[i]) < 1e-10);
  };
  equal(y_fused, y_hand);
  equal(gradient(x_fused), gradient(x_hand));
  equal(gradient(weights["norm1.weight"]), gradient(hand.norm1_weight));
  equal(gradient(weights["norm1.bias"]), gradient(hand.norm1_bias));
  equal(gradient(weights["norm2.weight"]), gradient(hand.norm2_weight));
  equal(gradient(weights["norm2.bias"]), gradient(hand.norm2_bias));
  equal(gradient(weights["attention.output.weight"]), gradient(hand.output));
  equal(gradient(weights["ffn.up.weight"]), gradient(hand.up));
  equal(gradient(weights["ffn.down.weight"]), gradient(hand.down));
  const Tensor dqkv = gradient(weights["attention.qkv.weight"]);
  equal(dqkv.rows(0, channels), gradient(hand.query));
  equal(dqkv.rows(channels, 2 * channels), gradient(hand.key));
  equal(dqkv.rows(2 * channels, 3 * channels), gradient(hand.value));
}
