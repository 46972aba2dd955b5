// The model as a whole: what it promises whatever its configuration.
#include "layers/gpt.h"

#include "autograd/gradcheck.h"
#include "core/threads.h"
#include "layers/token_norms.h"
#include "optim/optimizer.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

TransformerConfig tiny() {
  return {.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .channels = 8};
}

Tensor tokens(int64_t batch, int64_t time, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < batch * time; ++i) ids.push_back((i * i * 7 + i * 3 + seed) % 11);
  return Tensor::from(ids, {batch, time});
}

// Weights large enough that every path matters.
void enliven(GPT& model) {
  initialize(model, 5, [](const std::string&) { return 0.5; });
}

std::vector<TransformerConfig> variety() {
  std::vector<TransformerConfig> configs;
  const auto add = [&](const std::string& placement, const std::string& norm) {
    TransformerConfig config = tiny();
    config.placement = placement;
    config.norm = norm;
    configs.push_back(config);
  };
  for (const std::string placement :
       {"pre", "post", "sandwich", "peri", "post-branch", "deepnorm", "rezero", "b2t", "parallel",
        "mix", "residual-dual", "no-residual"}) {
    add(placement, "layernorm");
    add(placement, "rmsnorm");
  }
  for (const std::string norm : {"layernorm-nobias", "layernorm-simple", "layernorm-detach",
                                 "prmsnorm", "scalenorm", "adanorm", "groupnorm", "dyt", "none"})
    add("pre", norm);
  for (const std::string position : {"none", "learned", "sinusoidal", "rotary", "alibi"}) {
    TransformerConfig config = tiny();
    config.position = position;
    config.activation = position == "rotary" ? "swiglu" : "gelu";
    config.kv_heads = 1;
    config.qk_norm = position == "rotary";
    config.tied = position != "rotary";
    config.bias = position != "alibi";
    configs.push_back(config);
  }
  return configs;
}

std::string describe(const TransformerConfig& c) {
  return c.placement + " " + c.norm + " " + c.position + " " + c.activation;
}

}  // namespace

TEST_CASE("causal_models_ignore_later_tokens_exactly") {
  for (const TransformerConfig& config : variety()) {
    CAPTURE(describe(config));
    GPT model(config);
    enliven(model);
    const Tensor input = tokens(2, 8, 0);
    const auto before = model.logits(input).to_vector<float>();
    input.data<int32_t>()[7] = 4 - input.data<int32_t>()[7] % 2;  // the last token of sample 0
    const auto after = model.logits(input).to_vector<float>();
    const auto row = [](const std::vector<float>& all, int t) {
      return std::vector<float>(all.begin() + t * 11, all.begin() + (t + 1) * 11);
    };
    for (int t = 0; t < 16; ++t) CHECK((row(before, t) == row(after, t)) == (t != 7));
  }
}

TEST_CASE("cached_decoding_equals_the_whole_sequence") {
  for (const TransformerConfig& config : variety()) {
    CAPTURE(describe(config));
    GPT model(config);
    enliven(model);
    const Tensor input = tokens(1, 8, 3);
    const auto whole = model.logits(input).to_vector<float>();
    GPT::Cache cache = model.make_cache();
    for (int t = 0; t < 8; ++t) {
      const Tensor step = Tensor::from<int32_t>({input.data<int32_t>()[t]}, {1, 1});
      const auto scores = model.decode(step, cache).to_vector<float>();
      for (int v = 0; v < 11; ++v) CHECK(std::abs(scores[v] - whole[t * 11 + v]) < 1e-4);
    }
  }
}

TEST_CASE("every_parameter_moves_within_three_steps") {
  for (const TransformerConfig& config : variety()) {
    CAPTURE(describe(config));
    GPT model(config);
    Parameters parameters(model);
    std::vector<std::vector<float>> before;
    for (const auto& entry : parameters.entries())
      before.push_back(entry.tensor.to_vector<float>());
    AdamW optimizer(parameters, {.weight_decay = 0});
    for (int step = 0; step < 3; ++step) {
      parameters.zero_gradients();
      Tape tape;
      tape.backward(model.loss(tokens(3, 8, step), tokens(3, 8, step + 1)));
      optimizer.step(1e-2);
    }
    for (size_t i = 0; i < before.size(); ++i) {
      CAPTURE(parameters.entries()[i].name);
      CHECK(parameters.entries()[i].tensor.to_vector<float>() != before[i]);
    }
  }
}

TEST_CASE("losses_have_the_same_bits_on_one_and_two_threads") {
  const auto train = [](int threads) {
    set_num_threads(threads);
    GPT model({.vocabulary = 67,
               .context = 64,
               .layers = 2,
               .heads = 4,
               .channels = 128,
               .dropout = 0.1});
    Parameters parameters(model);
    AdamW optimizer(parameters);
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      parameters.zero_gradients();
      const RandomScope random({1, Purpose::dropout, static_cast<uint32_t>(step), 0});
      Tape tape;
      const Tensor loss =
          model.loss(tokens(12, 64, step), tokens(12, 64, step + 5), {.training = true});
      tape.backward(loss);
      losses.push_back(loss.item());
      losses.push_back(optimizer.step(1e-3, 1.0));
    }
    return losses;
  };
  const int before = num_threads();
  const auto one = train(1), two = train(2), three = train(3);
  set_num_threads(before);
  CHECK(one == two);
  CHECK(one == three);
}

TEST_CASE("the_first_loss_is_near_that_of_a_uniform_guess") {
  // Untied: logits are N(0, (0.02 sqrt(128))^2), which adds about half that variance, 0.026.
  GPT model({.vocabulary = 65, .context = 64, .tied = false});
  CHECK(model.loss(tokens(4, 64, 1), tokens(4, 64, 2)).item() == Approx(std::log(65)).margin(0.1));
}

TEST_CASE("tied_and_untied_models_differ_by_the_output_projection_alone") {
  TransformerConfig config = tiny();
  GPT tied(config);
  config.tied = false;
  GPT untied(config);
  CHECK(parameter_count(untied) - parameter_count(tied) == 11 * 8);
  CHECK(named_parameters(untied).back().name == "output.weight");
}

TEST_CASE("gpt2_has_124_million_parameters") {
  // What a block and a symbol cost is measured on small models; the whole is then GPT-2's
  // 124,439,808 (Radford et al. 2019, table 2, the smallest, as its published weights count).
  const auto count = [](int64_t vocabulary, int64_t context, int64_t layers) {
    GPT model({.vocabulary = vocabulary,
               .context = context,
               .layers = layers,
               .heads = 12,
               .channels = 768});
    return parameter_count(model);
  };
  const int64_t base = count(2, 1, 1), block = count(2, 1, 2) - base;
  const int64_t symbol = count(3, 1, 1) - base, place = count(2, 2, 1) - base;
  CHECK(base + 11 * block + (50257 - 2) * symbol + (1024 - 1) * place == 124439808);
}

TEST_CASE("a_norm_that_mixes_time_refuses_cached_decoding") {
  struct Mixing : NoNorm {
    Mixes mixes(bool) const override { return Mixes::time; }
  };
  register_norm("mixing", [](int64_t) { return std::make_unique<Mixing>(); });
  TransformerConfig config = tiny();
  config.norm = "mixing";
  GPT model(config);
  CHECK_THROWS_WITH(model.make_cache(), ContainsSubstring("'mixing' mixes time"));
}

TEST_CASE("configurations_that_make_no_sense_are_refused") {
  const auto refused = [](TransformerConfig config) { GPT model(config); };
  TransformerConfig config = tiny();
  config.vocabulary = 0;
  CHECK_THROWS_WITH(refused(config), ContainsSubstring("vocabulary must be positive, got 0"));
  config = tiny();
  config.heads = 3;
  CHECK_THROWS_WITH(refused(config), ContainsSubstring("3 heads"));
  config = tiny();
  config.dropout = 1;
  CHECK_THROWS_WITH(refused(config), ContainsSubstring("dropout must be in [0, 1)"));
  GPT model(tiny());
  CHECK_THROWS_WITH(model.logits(tokens(1, 9, 0)),
                    ContainsSubstring("9 tokens") && ContainsSubstring("context of 8"));
  CHECK_THROWS_WITH(model.logits(Tensor::from<int32_t>({11}, {1, 1})), ContainsSubstring("11"));
}
