// Modules, norms, placements, attention and the feed-forward network.
#include "autograd/gradcheck.h"
#include "layers/attention.h"
#include "layers/ffn.h"
#include "layers/residual.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

// A norm that is easy to follow by hand: y = 2 x.
struct Doubling : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return 2.0 * x; }
};

// What a placement makes of x0 = 1 with N(x) = 2 x, f1(x) = x + 3 and f2(x) = 10 x.
double placed(const std::string& name, int blocks) {
  const Placement placement = find_placement(name);
  const NormFactory norm = [](int64_t) { return std::make_unique<Doubling>(); };
  const SubLayer sublayers[] = {[](const Tensor& x) { return x + 3.0; },
                                [](const Tensor& x) { return 10.0 * x; }};
  Stream stream{Tensor::full({1, 1, 1}, 1), {}, {}};
  for (int i = 0; i < blocks; ++i)
    placement.make({.norm = norm, .channels = 1, .block = i, .blocks = blocks})
        ->forward(stream, sublayers, {});
  Doubling final_norm;
  return placement.finish(stream, placement.has_final_norm ? &final_norm : nullptr, {}).item();
}

void randomize(Module& module, uint64_t seed) {
  initialize(module, seed, [](const std::string&) { return 0.4; });
  convert(module, DType::f64);
}

}  // namespace

TEST_CASE("placements_follow_their_formulas") {
  // pre: 1 -> 1 + (2 + 3) = 6 -> 6 + 120 = 126; next block 126 + 255 = 381 -> 381 + 7620 = 8001.
  CHECK(placed("pre", 1) == 2 * 126);
  CHECK(placed("pre", 2) == 2 * 8001);
  // post: 2 (1 + 4) = 10 -> 2 (10 + 100) = 220.
  CHECK(placed("post", 1) == 220);
  // parallel: 1 + (2 + 3) + 20 = 26; next block 26 + (52 + 3) + 520 = 601.
  CHECK(placed("parallel", 1) == 2 * 26);
  CHECK(placed("parallel", 2) == 2 * 601);
  // residual-dual: r = 1 + 4 + 100 = 105 beside post's 220.
  CHECK(placed("residual-dual", 1) == 220 + 2 * 105);
}

TEST_CASE("placements_report_their_norms_by_name") {
  const auto names = [](const std::string& placement) {
    const auto residual =
        find_placement(placement).make({.norm = find_norm("rmsnorm"), .channels = 4});
    std::string text;
    for (const NamedTensor& entry : named_tensors(*residual)) text += entry.name + " ";
    return text;
  };
  CHECK(names("pre") == "norm1.weight norm2.weight ");
  CHECK(names("post") == "norm1.weight norm2.weight ");
  CHECK(names("parallel") == "norm1.weight ");
}

TEST_CASE("unknown_names_list_the_known_ones") {
  CHECK_THROWS_WITH(find_norm("batch"), ContainsSubstring("no norm 'batch'") &&
                                            ContainsSubstring("layernorm") &&
                                            ContainsSubstring("rmsnorm"));
  CHECK_THROWS_WITH(find_placement("before"), ContainsSubstring("residual-dual"));
  CHECK_THROWS_WITH(find_position("relative"), ContainsSubstring("rotary"));
  CHECK_THROWS_WITH(FeedForward(4, 8, "swish", true), ContainsSubstring("swiglu"));
}

TEST_CASE("a_registered_norm_is_found_by_name_and_a_name_is_taken_once") {
  register_norm("doubling", [](int64_t) { return std::make_unique<Doubling>(); });
  const Tensor y = find_norm("doubling")(1)->forward(Tensor::full({1, 1, 1}, 3), {});
  CHECK(y.item() == 6);
  CHECK_THROWS_WITH(register_norm("doubling", [](int64_t) { return std::make_unique<Doubling>(); }),
                    ContainsSubstring("registered already"));
}

TEST_CASE("fused_add_forward_of_norms_equals_the_composed_one") {
  for (const char* name : {"layernorm", "layernorm-nobias", "rmsnorm", "none"}) {
    CAPTURE(name);
    const auto norm = find_norm(name)(33);
    convert(*norm, DType::f64);
    const Tensor residual = random_tensor({2, 3, 33}, 1), x = random_tensor({2, 3, 33}, 2);
    const SumAndNorm fused = norm->add_forward(residual, x, 1.5, {});
    const SumAndNorm composed = norm->Norm::add_forward(residual, x, 1.5, {});
    for (int64_t i = 0; i < x.numel(); ++i) {
      CHECK(std::abs(fused.sum.data<double>()[i] - composed.sum.data<double>()[i]) < 1e-12);
      CHECK(std::abs(fused.norm.data<double>()[i] - composed.norm.data<double>()[i]) < 1e-12);
    }
  }
}

TEST_CASE("attention_with_a_cache_equals_attention_over_all_tokens") {
  for (const Position position : {Position::none, Position::rotary, Position::alibi}) {
    for (const bool qk_norm : {false, true}) {
      MultiHeadAttention attention(
          {.channels = 12, .heads = 3, .kv_heads = 1, .qk_norm = qk_norm, .position = position});
      randomize(attention, 1);
      const Tensor x = random_tensor({2, 7, 12}, 2);
      const Tensor whole = attention.forward(x, {});
      KVCache cache = attention.make_cache(2, 9);
      std::vector<Tensor> parts;
      for (const auto& [begin, end] : {std::pair{0, 3}, {3, 4}, {4, 7}})
        parts.push_back(attention.forward(slice(x, 1, begin, end), {}, &cache));
      const Tensor pieces = concat(parts, 1);
      for (int64_t i = 0; i < whole.numel(); ++i)
        CHECK(std::abs(whole.data<double>()[i] - pieces.data<double>()[i]) < 1e-12);
      CHECK_THROWS_WITH(attention.forward(x, {}, &cache), ContainsSubstring("cannot take 7 more"));
    }
  }
}

TEST_CASE("attention_layers_pass_the_gradient_check") {
  MultiHeadAttention self(
      {.channels = 8, .heads = 4, .kv_heads = 2, .qk_norm = true, .position = Position::rotary});
  randomize(self, 1);
  CrossAttention cross({.channels = 8, .heads = 2, .qk_norm = true});
  randomize(cross, 2);
  const Tensor lengths = Tensor::from<int32_t>({3, 5});
  CHECK(gradcheck([&](const std::vector<Tensor>& in) { return self.forward(in[0], {}); },
                  {random_tensor({2, 5, 8}, 3)}));
  CHECK(gradcheck(
      [&](const std::vector<Tensor>& in) {
        return cross.forward(in[0], in[1], {.memory_lengths = lengths});
      },
      {random_tensor({2, 3, 8}, 4), random_tensor({2, 5, 8}, 5)}));
}

TEST_CASE("cross_attention_ignores_memory_beyond_its_length") {
  CrossAttention cross({.channels = 8, .heads = 2});
  randomize(cross, 2);
  const Tensor x = random_tensor({1, 3, 8}, 1), memory = random_tensor({1, 5, 8}, 2);
  const Context context{.memory_lengths = Tensor::from<int32_t>({3})};
  const auto before = cross.forward(x, memory, context).to_vector<double>();
  for (int64_t i = 3 * 8; i < memory.numel(); ++i) memory.data<double>()[i] = 100;
  CHECK(cross.forward(x, memory, context).to_vector<double>() == before);
  for (int64_t i = 0; i < 8; ++i) memory.data<double>()[i] += 1;
  CHECK(cross.forward(x, memory, context).to_vector<double>() != before);
}

TEST_CASE("head_counts_that_do_not_fit_are_refused_with_both_numbers") {
  CHECK_THROWS_WITH(MultiHeadAttention({.channels = 10, .heads = 3}),
                    ContainsSubstring("10 channels") && ContainsSubstring("3 heads"));
  CHECK_THROWS_WITH(MultiHeadAttention({.channels = 12, .heads = 4, .kv_heads = 3}),
                    ContainsSubstring("4 heads cannot share 3"));
  CHECK_THROWS_WITH(MultiHeadAttention({.channels = 9, .heads = 3, .position = Position::rotary}),
                    ContainsSubstring("even head size"));
}

TEST_CASE("feed_forward_computes_its_formula") {
  const Tensor x = random_tensor({2, 3, 4}, 1);
  for (const std::string activation : {"gelu", "gelu_tanh", "relu", "silu", "swiglu"}) {
    CAPTURE(activation);
    FeedForward ffn(4, 6, activation, true);
    randomize(ffn, 2);
    const Tensor up = linear(x, ffn.up.weight, ffn.up.bias);
    const Tensor hidden = activation == "gelu"        ? gelu(up)
                          : activation == "gelu_tanh" ? gelu_tanh(up)
                          : activation == "relu"      ? relu(up)
                          : activation == "silu"      ? silu(up)
                                                 : silu(slice(up, -1, 0, 6)) * slice(up, -1, 6, 12);
    const auto expected = linear(hidden, ffn.down.weight, ffn.down.bias).to_vector<double>();
    const auto actual = ffn.forward(x).to_vector<double>();
    for (size_t i = 0; i < actual.size(); ++i) CHECK(std::abs(actual[i] - expected[i]) < 1e-12);
  }
  CHECK(default_hidden_size(768, "gelu") == 3072);
  CHECK(default_hidden_size(768, "swiglu") == 2048);
}

TEST_CASE("sinusoidal_positions_follow_the_formula") {
  const Tensor table = sinusoidal_positions(50, 6);
  CHECK(table.data<float>()[0] == 0);
  CHECK(table.data<float>()[1] == 1);
  CHECK(table.data<float>()[7 * 6 + 2] == Approx(std::sin(7 / std::pow(10000, 2.0 / 6))));
  CHECK(table.data<float>()[49 * 6 + 5] == Approx(std::cos(49 / std::pow(10000, 4.0 / 6))));
  CHECK_THROWS_WITH(sinusoidal_positions(5, 3), ContainsSubstring("even"));
}

TEST_CASE("initialize_and_convert_reach_every_handle") {
  Linear linear(300, 200);
  const Tensor handle = linear.weight;
  initialize(linear, 7, [](const std::string& name) { return name == "weight" ? 0.5 : 9; });
  double sum = 0;
  for (float w : handle.to_vector<float>()) sum += w * w;
  CHECK(std::sqrt(sum / handle.numel()) == Approx(0.5).epsilon(0.02));
  for (float b : linear.bias.to_vector<float>()) CHECK(b == 0);  // biases stay
  const auto before = handle.to_vector<float>();
  convert(linear, DType::f64);
  CHECK(handle.dtype() == DType::f64);
  CHECK(handle.data<double>()[3] == before[3]);
  Tape tape;
  tape.backward(tapeformer::sum(linear.forward(random_tensor({1, 300}, 1))));
  CHECK(gradient(handle).dtype() == DType::f64);
}
