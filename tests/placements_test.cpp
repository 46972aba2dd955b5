// Every placement by its formula, the weights that it starts from, and every norm in every
// placement: their gradients in a model of two layers.
#include <cmath>
#include <map>

#include "autograd/tape.h"
#include "layers/gpt.h"
#include "tests/catch.h"
#include "tests/norms.h"

using namespace tapeformer;

namespace {

const std::vector<std::string> all_placements = {
    "pre",    "post", "sandwich", "peri", "post-branch",   "deepnorm",
    "rezero", "b2t",  "parallel", "mix",  "residual-dual", "no-residual"};

// N(x) = 2 x, so that results can be worked out by hand.
struct Twice : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return 2 * x; }
};
std::unique_ptr<Norm> twice(int64_t) { return std::make_unique<Twice>(); }

// What the stack of `blocks` blocks, with f1(x) = x + 3 and f2(x) = 10 x, makes of 1.
double placed(const std::string& name, int64_t blocks, double rezero_scale = 0) {
  const Placement placement = find_placement(name);
  const SubLayer sublayers[] = {[](const Tensor& x) { return x + 3; },
                                [](const Tensor& x) { return 10 * x; }};
  Stream stream{Tensor::full({1, 1, 1}, 1, DType::f64), {}, {}};
  for (int64_t i = 0; i < blocks; ++i) {
    const auto block = placement.make({.norm = twice, .channels = 1, .block = i, .blocks = blocks});
    convert(*block, DType::f64);
    for (const NamedTensor& scale : named_parameters(*block)) scale.tensor.fill(rezero_scale);
    block->forward(stream, sublayers, {});
  }
  Twice final_norm;
  return placement.finish(stream, placement.has_final_norm ? &final_norm : nullptr, {}).item();
}

TransformerConfig two_layers(const std::string& placement, const std::string& norm) {
  return {.vocabulary = 5,
          .context = 4,
          .layers = placement == "mix" ? 4 : 2,  // so that mix has a block of each kind
          .heads = 2,
          .channels = 8,
          .hidden = 12,
          .norm = norm,
          .placement = placement,
          .activation = "gelu"};
}

double deviation_of(const Tensor& x) {
  double sum = 0;
  for (const double value : values_of(x)) sum += value * value;
  return std::sqrt(sum / x.numel());
}

}  // namespace

TEST_CASE("each_placement_follows_its_formula") {
  // sandwich: 1 + 2 (2 + 3) = 11, 11 + 2 (10 * 22) = 451; peri norms that once more.
  CHECK(placed("sandwich", 1) == 451);
  CHECK(placed("peri", 1) == 902);
  // post-branch: 1 + 2 (1 + 3) = 9, 9 + 2 * 90 = 189, and the final norm.
  CHECK(placed("post-branch", 1) == 2 * 189);
  // deepnorm: a = (2L)^(1/4); 2 (a x + x + 3), then 2 (a x + 10 x).
  for (const int64_t blocks : {1, 3}) {
    const double a = std::pow(2.0 * blocks, 0.25);
    double x = 1;
    for (int64_t i = 0; i < blocks; ++i) {
      x = 2 * (a * x + x + 3);
      x = 2 * (a * x + 10 * x);
    }
    CHECK(placed("deepnorm", blocks) == Approx(x).epsilon(1e-14));
  }
  // rezero: 1 + a (1 + 3), then x + a 10 x; with a = 1/2: 3, 18.
  CHECK(placed("rezero", 2) == 1);
  CHECK(placed("rezero", 1, 0.5) == 18);
  // b2t: 2 (1 + 4) = 10, 2 (10 + 100 + 1) = 222.
  CHECK(placed("b2t", 1) == 222);
  // mix: the first quarter post, 44 (2x + 3), the others pre, 63 (x + 1); then the final norm.
  CHECK(placed("mix", 3) == placed("pre", 3));
  double x = 1;
  for (int block = 0; block < 9; ++block) x = block < 2 ? 44 * (2 * x + 3) : 63 * (x + 1);
  CHECK(placed("mix", 9) == Approx(2 * x).epsilon(1e-14));
  // no-residual: 2 (1 + 3) = 8, 2 * 80 = 160.
  CHECK(placed("no-residual", 1) == 160);
}

TEST_CASE("peri_norms_the_embedding_and_others_do_not") {
  for (const std::string& placement : all_placements) {
    GPT model(two_layers(placement, "rmsnorm"));
    const auto names = named_tensors(model);
    const bool found = std::ranges::any_of(
        names, [](const NamedTensor& entry) { return entry.name == "embedding_norm.weight"; });
    CHECK(found == (placement == "peri"));
    if (!found) continue;
    double rms = 0;
    const Context look{.observe_stream = [&](int64_t blocks, const Tensor& stream) {
      if (blocks == 0) rms = deviation_of(stream);
    }};
    model.logits(Tensor::from<int32_t>({0, 1, 2}, {1, 3}), look);
    CHECK(rms == Approx(1).epsilon(0.05));  // embeddings alone have 0.02 to 0.03
  }
}

TEST_CASE("deepnorm_scales_values_outputs_and_ffn_of_xavier_weights") {
  TransformerConfig config{.vocabulary = 11,
                           .context = 4,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .channels = 128,
                           .hidden = 384,
                           .placement = "deepnorm"};
  GPT model(config);
  const double beta = std::pow(8.0 * 2, -0.25);
  const auto xavier = [](double in, double out) { return std::sqrt(2 / (in + out)); };
  std::map<std::string, Tensor> weights;
  for (const NamedTensor& entry : named_parameters(model)) weights[entry.name] = entry.tensor;
  const Tensor qkv = weights.at("blocks.1.attention.qkv.weight").detach();
  CHECK(deviation_of(qkv.rows(0, 128)) == Approx(xavier(128, 128)).epsilon(0.03));
  CHECK(deviation_of(qkv.rows(128, 192)) == Approx(xavier(128, 64)).epsilon(0.03));
  CHECK(deviation_of(qkv.rows(192, 256)) == Approx(beta * xavier(128, 64)).epsilon(0.03));
  CHECK(deviation_of(weights.at("blocks.1.attention.output.weight")) ==
        Approx(beta * xavier(128, 128)).epsilon(0.03));
  CHECK(deviation_of(weights.at("blocks.0.ffn.up.weight")) ==
        Approx(beta * xavier(128, 384)).epsilon(0.03));
  CHECK(deviation_of(weights.at("blocks.1.ffn.down.weight")) ==
        Approx(beta * xavier(128, 384)).epsilon(0.03));
  // By name for any placement, without its factor; swiglu's two maps have their own sizes.
  config.placement = "pre";
  config.initialization = "xavier";
  config.activation = "swiglu";
  GPT plain(config);
  for (const NamedTensor& entry : named_parameters(plain)) weights[entry.name] = entry.tensor;
  CHECK(deviation_of(weights.at("blocks.0.ffn.up.weight")) ==
        Approx(xavier(128, 384)).epsilon(0.03));
  CHECK(deviation_of(weights.at("blocks.0.ffn.down.weight")) ==
        Approx(xavier(128, 384)).epsilon(0.03));
  CHECK(deviation_of(weights.at("token_embedding.weight")) ==
        Approx(1 / std::sqrt(128.0)).epsilon(0.06));
  config.initialization = "zeros";
  CHECK_THROWS_WITH(GPT(config),
                    ContainsSubstring("no initialization 'zeros'") && ContainsSubstring("xavier"));
}

TEST_CASE("rezero_starts_as_the_identity") {
  TransformerConfig config = two_layers("rezero", "layernorm");
  GPT model(config);
  std::vector<Tensor> streams;
  model.logits(Tensor::from<int32_t>({0, 1, 2}, {1, 3}),
               {.observe_stream = [&](int64_t, const Tensor& x) { streams.push_back(x.clone()); }});
  REQUIRE(streams.size() == 3);
  CHECK(values_of(streams[2]) == values_of(streams[0]));
}

// The derivative of the loss along a random direction through all parameters at once, analytic and
// by central differences.
TEST_CASE("every_norm_in_every_placement_has_the_right_gradient") {
  const Tensor input = Tensor::from<int32_t>({0, 3, 2, 1, 4, 4, 1, 0}, {2, 4});
  const Tensor target = Tensor::from<int32_t>({3, 2, -1, -1, 1, 0, 2, 4}, {2, 4});
  for (const std::string& placement : all_placements) {
    for (const std::string& norm : all_norms) {
      GPT model(two_layers(placement, norm));
      convert(model, DType::f64);
      std::vector<Tensor> values, directions;
      for (const NamedTensor& entry : named_parameters(model)) {
        const uint64_t seed = 10 * values.size();
        const bool gain = entry.tensor.rank() == 1;
        entry.tensor.copy_from(
            affine(random_tensor(entry.tensor.shape(), seed), gain ? 0.2 : 0.4, gain ? 0.8 : 0));
        values.push_back(entry.tensor);
        directions.push_back(random_tensor(entry.tensor.shape(), seed + 1));
      }
      for (const bool padded : {false, true}) {
        CAPTURE(placement, norm, padded);
        const Context context{.lengths = padded ? lengths_of({2, 4}) : Tensor{},
                              .batch_statistics = true};
        double analytic = 0;
        for (const Tensor& value : values) zero_gradient(value);
        {
          Tape tape;
          tape.backward(model.loss(input, target, context));
        }
        for (size_t i = 0; i < values.size(); ++i)
          if (gradient(values[i]).defined())
            analytic += sum(gradient(values[i]) * directions[i]).item();
        const auto loss_at = [&](double distance) {
          const Pause pause;
          for (size_t i = 0; i < values.size(); ++i)
            values[i].copy_from(values[i].detach() + distance * directions[i]);
          return model.loss(input, target, context).item();
        };
        const double step = 1e-7, above = loss_at(step), below = loss_at(-2 * step);
        loss_at(step);  // back
        const double numeric = (above - below) / (2 * step);
        const double error = std::abs(numeric - analytic) / std::max(1.0, std::abs(numeric));
        // Both detach a factor, so their gradient is no derivative of the loss; rezero has no norm.
        const bool detaches = norm == "layernorm-detach" || norm == "adanorm";
        if (detaches && placement != "rezero")
          CHECK(error > 1e-4);
        else
          CHECK(error < 1e-7);
      }
    }
  }
}

TEST_CASE("a_batch_norm_that_sees_one_token_is_refused_with_the_reason") {
  GPT model(two_layers("pre", "batchnorm"));
  const Tensor one = Tensor::from<int32_t>({1}, {1, 1});
  CHECK_THROWS_WITH(model.loss(one, one, {.training = true}), ContainsSubstring("batch norm"));
  CHECK_NOTHROW(model.loss(one, one));  // running statistics
}

TEST_CASE("norms_that_mix_only_while_training_decode_over_a_cache") {
  for (const std::string norm : {"batchnorm", "powernorm", "instancenorm"}) {
    CAPTURE(norm);
    GPT model(two_layers("pre", norm));
    CHECK(model.mixes(true) != Mixes::nothing);
    const Tensor input = Tensor::from<int32_t>({0, 3, 2, 1}, {1, 4});
    if (norm == "instancenorm") {
      CHECK_THROWS_WITH(model.make_cache(), ContainsSubstring("'instancenorm' mixes time steps"));
      continue;
    }
    for (int i = 0; i < 3; ++i) model.loss(input, input, {.training = true});  // moves the buffers
    GPT::Cache cache = model.make_cache();
    const auto whole = values_of(model.logits(input));
    const auto last = values_of(model.decode(input, cache));
    for (int v = 0; v < 5; ++v) CHECK(last[v] == Approx(whole[15 + v]).epsilon(1e-5));
  }
}
