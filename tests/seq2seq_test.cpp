// The encoder-decoder: against PyTorch, its gradients, what padding and later tokens must not do,
// and decoding over a cache.
#include "layers/seq2seq.h"

#include <set>

#include "layers/encoder.h"
#include "layers/gpt.h"
#include "layers/gradcheck.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/vectors/vectors.h"
#include "train/model_config.h"

using namespace tapeformer;

namespace {

TransformerConfig tiny(const std::string& norm = "layernorm",
                       const std::string& placement = "pre") {
  return {.vocabulary = 11,
          .context = 8,
          .layers = 2,
          .heads = 2,
          .channels = 8,
          .hidden = 12,
          .norm = norm,
          .placement = placement,
          .position = "sinusoidal",
          .activation = "relu",
          .encoder_layers = 1};
}

Tensor tokens(int64_t batch, int64_t time, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < batch * time; ++i)
    ids.push_back(static_cast<int32_t>((i * i * 7 + i * 3 + seed) % 11));
  return Tensor::from(ids, {batch, time});
}

// Weights at which everything matters, gains and scales included.
std::unique_ptr<Seq2Seq> lively(const TransformerConfig& config, DType dtype = DType::f64) {
  auto model = std::make_unique<Seq2Seq>(config);
  convert(*model, dtype);
  Generator random({3, Purpose::sampling, 0, 0});
  for (const NamedTensor& entry : named_parameters(*model)) {
    std::vector<double> values(entry.tensor.numel());
    const double centre = entry.tensor.rank() == 1 ? 0.6 : 0;
    for (double& value : values) value = centre + 0.8 * (random.uniform() - 0.5);
    entry.tensor.copy_from(Tensor::from(values, entry.tensor.shape()));
  }
  return model;
}

std::set<std::string> names_of(Module& module) {
  std::set<std::string> names;
  for (const NamedTensor& entry : named_tensors(module)) names.insert(entry.name);
  return names;
}

Tensor matrix(const nlohmann::json& held) {
  std::vector<int32_t> ids;
  for (const auto& row : held)
    for (const int32_t id : row) ids.push_back(id);
  return Tensor::from(ids,
                      {static_cast<int64_t>(held.size()), static_cast<int64_t>(held[0].size())});
}

// The logits of targets b read token by token over a cache.
std::vector<Tensor> cached_logits(Seq2Seq& model, const Tensor& source, const Tensor& lengths,
                                  const Tensor& inputs) {
  Seq2Seq::Cache cache = model.start(source, lengths, inputs.dim(1));
  std::vector<Tensor> result;
  for (int64_t t = 0; t < inputs.dim(1); ++t) {
    std::vector<int32_t> next;
    for (int64_t b = 0; b < inputs.dim(0); ++b)
      next.push_back(inputs.data<int32_t>()[b * inputs.dim(1) + t]);
    result.push_back(model.decode(Tensor::from(next, {inputs.dim(0), 1}), cache));
  }
  return result;
}

}  // namespace

TEST_CASE("an_encoder_decoder_computes_as_in_pytorch") {
  const nlohmann::json all = vectors::read_json("seq2seq.json");
  for (const auto& held : all.at("cases")) {
    TransformerConfig config = tiny("layernorm", held.at("placement"));
    Seq2Seq model(config);
    convert(model, DType::f64);
    const auto weights = vectors::tensors_from(held.at("weights"), DType::f64);
    const auto expected = vectors::tensors_from(held.at("gradients"), DType::f64);
    REQUIRE(named_parameters(model).size() == weights.size());
    for (const NamedTensor& entry : named_parameters(model)) {
      INFO(entry.name);
      REQUIRE(weights.count(entry.name) == 1);
      entry.tensor.copy_from(weights.at(entry.name));
    }
    const Context context{
        .lengths = Tensor::from(all.at("lengths").get<std::vector<int32_t>>()),
        .memory_lengths = Tensor::from(all.at("source_lengths").get<std::vector<int32_t>>())};
    const Tensor source = matrix(all.at("source")), inputs = matrix(all.at("inputs"));
    vectors::expect_close("logits", model.logits(source, inputs, context),
                          vectors::tensor_from(held.at("logits"), DType::f64), 1e-12);
    Tape tape;
    const Tensor loss = model.loss(source, inputs, matrix(all.at("targets")), context,
                                   all.at("smoothing").get<double>());
    CHECK(loss.item() == Approx(held.at("loss").get<double>()).epsilon(1e-12));
    tape.backward(loss);
    for (const NamedTensor& entry : named_parameters(model))
      vectors::expect_close(entry.name, gradient(entry.tensor), expected.at(entry.name), 1e-11);
  }
}

TEST_CASE("an_encoder_decoder_passes_the_gradient_check") {
  std::vector<TransformerConfig> configs;
  for (const std::string& placement : placement_names())
    if (placement != "parallel") configs.push_back(tiny("layernorm", placement));
  TransformerConfig other = tiny("rmsnorm");
  other.source_vocabulary = 13;
  other.tied = false;
  other.kv_heads = 1;
  other.qk_norm = true;
  other.position = "rotary";
  other.activation = "swiglu";
  configs.push_back(other);
  TransformerConfig mixed = tiny("layernorm");
  mixed.encoder_norm = "batchnorm";
  mixed.position = "learned";
  configs.push_back(mixed);
  const Tensor source = tokens(2, 4, 1), inputs = tokens(2, 3, 2), targets = tokens(2, 3, 5);
  targets.data<int32_t>()[5] = -1;
  const Context context{.training = true,
                        .lengths = Tensor::from<int32_t>({3, 2}),
                        .memory_lengths = Tensor::from<int32_t>({4, 2})};
  for (const TransformerConfig& config : configs) {
    const auto model = lively(config);
    const GradcheckResult result = gradcheck(
        *model, [&](const auto&) { return model->loss(source, inputs, targets, context, 0.1); }, {},
        {.tolerance = 1e-5});
    INFO(config.placement << " " << config.norm << " " << result.message);
    CHECK(result.passed);
  }
}

TEST_CASE("every_norm_serves_an_encoder_and_a_decoder") {
  const Tensor source = tokens(2, 4, 1), inputs = tokens(2, 3, 2);
  const Context context{.training = true,
                        .lengths = Tensor::from<int32_t>({3, 2}),
                        .memory_lengths = Tensor::from<int32_t>({4, 3})};
  const auto plain = values_of(lively(tiny())->logits(source, inputs, context));
  for (const std::string& norm : norm_names()) {
    TransformerConfig encoder = tiny(), decoder = tiny();
    encoder.encoder_norm = norm;
    decoder.decoder_norm = norm;
    for (const TransformerConfig& config : {encoder, decoder}) {
      INFO(norm);
      const auto values = values_of(lively(config)->logits(source, inputs, context));
      for (const double value : values) REQUIRE(std::isfinite(value));
      if (norm != "layernorm" && norm != "layernorm-detach" && norm != "groupnorm")  // of one group
        CHECK(largest_error(values, plain) > 1e-6);
    }
  }
}

TEST_CASE("the_encoder_and_the_decoder_have_norms_of_their_own") {
  TransformerConfig config = tiny("rmsnorm");
  CHECK(names_of(*lively(config)).count("encoder.blocks.0.norm1.bias") == 0);
  config.encoder_norm = "batchnorm";
  const auto names = names_of(*lively(config));
  CHECK(names.count("encoder.blocks.0.norm1.running_mean") == 1);
  CHECK(names.count("encoder.final_norm.running_mean") == 1);
  CHECK(names.count("decoder.blocks.0.norm1.running_mean") == 0);
  config.decoder_norm = "layernorm";
  CHECK(names_of(*lively(config)) != names);
  CHECK(config_from_json(to_json(config)) == config);
}

TEST_CASE("embeddings_are_shared_or_separate") {
  TransformerConfig config = tiny();
  CHECK(names_of(*lively(config)).count("source_embedding.weight") == 0);
  config.source_vocabulary = 30;
  config.tied = false;
  const auto model = lively(config);
  CHECK(names_of(*model).count("source_embedding.weight") == 1);
  CHECK(names_of(*model).count("output.weight") == 1);
  const Tensor source = Tensor::from<int32_t>({29, 4}, {1, 2});  // beyond the target's vocabulary
  CHECK(model->logits(source, tokens(1, 2, 1)).dim(-1) == 11);
}

TEST_CASE("padding_and_later_tokens_change_nothing") {
  for (const std::string position : {"sinusoidal", "rotary", "learned"}) {
    TransformerConfig config = tiny();
    config.position = position;
    const auto model = lively(config);
    const Context context{.lengths = Tensor::from<int32_t>({3, 2}),
                          .memory_lengths = Tensor::from<int32_t>({2, 4})};
    const Tensor source = tokens(2, 4, 1), inputs = tokens(2, 3, 2);
    const Tensor before = model->logits(source, inputs, context);
    source.data<int32_t>()[2] = 9;  // sentence 0 beyond its two tokens
    source.data<int32_t>()[3] = 8;
    CHECK(same_bits(model->logits(source, inputs, context), before));
    inputs.data<int32_t>()[2] = 7;  // the last token of target 0
    const auto after = values_of(model->logits(source, inputs, context));
    const auto expected = values_of(before);
    for (size_t i = 0; i < 2 * 11; ++i) REQUIRE(after[i] == expected[i]);
    source.data<int32_t>()[1] = 6;  // a real token of the source moves every target token
    CHECK(largest_error(values_of(model->logits(source, inputs, context)), after) > 1e-3);
  }
}

TEST_CASE("decoding_over_a_cache_equals_reading_all_at_once") {
  for (const std::string& placement : placement_names()) {
    if (placement == "parallel") continue;
    TransformerConfig config = tiny("rmsnorm", placement);
    config.kv_heads = 1;
    config.qk_norm = true;
    config.position = placement == "post" ? "rotary" : "learned";
    const auto model = lively(config);
    const Tensor source = tokens(3, 5, 1), inputs = tokens(3, 4, 2);
    const Tensor lengths = Tensor::from<int32_t>({5, 2, 3});
    const auto expected = values_of(model->logits(source, inputs, {.memory_lengths = lengths}));
    const auto cached = cached_logits(*model, source, lengths, inputs);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t v = 0; v < 11; ++v)
          REQUIRE(values_of(cached[t])[b * 11 + v] ==
                  Approx(expected[(b * 4 + t) * 11 + v]).epsilon(1e-9).margin(1e-9));
  }
}

TEST_CASE("a_batch_of_sentences_and_each_alone_have_the_same_logits") {
  const auto model = lively(tiny("layernorm", "post"), DType::f32);
  const Tensor source = tokens(3, 6, 1), inputs = tokens(3, 4, 2);
  const std::vector<int32_t> lengths{6, 2, 3};
  const Tensor together = model->logits(source, inputs, {.memory_lengths = Tensor::from(lengths)});
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<int32_t> ids(source.data<int32_t>() + b * 6,
                             source.data<int32_t>() + b * 6 + lengths[b]);
    const Tensor alone = model->logits(Tensor::from(ids, {1, lengths[b]}), inputs.rows(b, b + 1));
    CHECK(largest_error(alone, values_of(together.rows(b, b + 1))) < 1e-5);
  }
}

TEST_CASE("selecting_rows_of_a_cache_goes_on_with_their_histories") {
  const auto model = lively(tiny());
  const Tensor source = tokens(2, 4, 1), lengths = Tensor::from<int32_t>({4, 2});
  Seq2Seq::Cache cache = model->start(source, lengths, 4, 2);  // rows: 0 0 1 1
  model->decode(Tensor::from<int32_t>({1, 2, 3, 4}, {4, 1}), cache);
  cache.select({3, 3, 0}, true);
  const Tensor got = model->decode(Tensor::from<int32_t>({5, 6, 7}, {3, 1}), cache);
  const auto expected = [&](int64_t sentence, std::vector<int32_t> inputs) {
    const Tensor logits =
        model->logits(source.rows(sentence, sentence + 1), Tensor::from(inputs, {1, 2}),
                      {.memory_lengths = lengths.rows(sentence, sentence + 1)});
    return values_of(logits.view({2, 11}).rows(1, 2));
  };
  CHECK(largest_error(got.rows(0, 1), expected(1, {4, 5})) < 1e-9);
  CHECK(largest_error(got.rows(1, 2), expected(1, {4, 6})) < 1e-9);
  CHECK(largest_error(got.rows(2, 3), expected(0, {1, 7})) < 1e-9);
}

TEST_CASE("cross_attention_weights_are_seen_and_sum_to_one_over_real_tokens") {
  TransformerConfig config = tiny();
  config.kv_heads = 1;
  const auto model = lively(config);
  std::vector<Tensor> seen;
  Context context{.memory_lengths = Tensor::from<int32_t>({3, 5})};
  const Tensor source = tokens(2, 5, 1), inputs = tokens(2, 4, 2);
  const Tensor plain = model->logits(source, inputs, context);
  context.observe_cross_attention = [&](const Tensor& weights) { seen.push_back(weights); };
  CHECK(same_bits(model->logits(source, inputs, context), plain));
  REQUIRE(seen.size() == 2);
  for (const Tensor& weights : seen) {
    REQUIRE(weights.shape() == Shape{2, 2, 4, 5});
    for (int64_t row = 0; row < 2 * 2 * 4; ++row) {
      const double* const w = weights.data<double>() + row * 5;
      CHECK(w[0] + w[1] + w[2] + w[3] + w[4] == Approx(1));
      if (row < 8) CHECK(w[3] + w[4] == 0);
    }
  }
}

TEST_CASE("deepnorm_of_an_encoder_decoder_has_the_papers_constants") {
  // Wang et al. 2022, table 1, N = 6 encoder and M = 6 decoder layers, worked out apart:
  // encoder alpha 0.81 (6^4 6)^(1/16) = 1.4179, beta 0.87 / 1.7506 = 0.4970; decoder alpha
  // 18^(1/4) = 2.0598, beta 72^(-1/4) = 0.3433.
  TransformerConfig config = tiny("layernorm", "deepnorm");
  config.channels = 64;
  config.heads = 4;
  config.hidden = 0;
  config.layers = config.encoder_layers = 6;
  Seq2Seq model(config, 3);
  const auto deviation = [&](const std::string& name, int64_t begin, int64_t end) {
    for (const NamedTensor& entry : named_parameters(model))
      if (entry.name == name) {
        double sum = 0;
        const auto values = values_of(entry.tensor.detach().rows(begin, end));
        for (const double value : values) sum += value * value;
        return std::sqrt(sum / static_cast<double>(values.size()));
      }
    return 0.0;
  };
  const double square = std::sqrt(2.0 / 128);  // Xavier of 64 x 64
  const auto near = [](double value) { return Approx(value).epsilon(0.03); };
  CHECK(deviation("encoder.blocks.0.attention.output.weight", 0, 64) == near(0.4970 * square));
  CHECK(deviation("decoder.blocks.0.attention.output.weight", 0, 64) == near(0.3433 * square));
  CHECK(deviation("decoder.blocks.0.cross_attention.output.weight", 0, 64) ==
        near(0.3433 * square));
  CHECK(deviation("decoder.blocks.0.cross_attention.query.weight", 0, 64) == near(square));
  CHECK(deviation("decoder.blocks.0.cross_attention.key_value.weight", 0, 64) == near(square));
  CHECK(deviation("decoder.blocks.0.cross_attention.key_value.weight", 64, 128) ==
        near(0.3433 * square));
  CHECK(deviation("token_embedding.weight", 0, 11) == Approx(1.0 / 8).epsilon(0.1));

  const auto step = [](StackShape::Role role) {  // N(alpha x + f(x)) of x = 1, f = 0, N = identity
    const auto residual = find_placement("deepnorm")
                              .make({.norm = find_norm("none"),
                                     .channels = 1,
                                     .sublayers = 1,
                                     .blocks = 6,
                                     .role = role,
                                     .partner_blocks = 6});
    Stream stream{Tensor::full({1, 1, 1}, 1, DType::f64), {}, {}};
    const SubLayer nothing[] = {[](const Tensor& x) { return x * 0.0; }};
    residual->forward(stream, nothing, {});
    return stream.x.item();
  };
  CHECK(step(StackShape::Role::encoder) == Approx(1.4179).epsilon(1e-4));
  CHECK(step(StackShape::Role::decoder) == Approx(2.0598).epsilon(1e-4));
}

TEST_CASE("encoder_decoders_that_make_no_sense_are_refused") {
  const auto refused = [](auto change, const std::string& with) {
    TransformerConfig config = tiny();
    change(config);
    CHECK_THROWS_WITH(Seq2Seq(config), ContainsSubstring(with));
  };
  refused([](auto& c) { c.placement = "parallel"; }, "no form with cross-attention");
  refused([](auto& c) { c.position = "alibi"; }, "alibi");
  refused([](auto& c) { c.causal = false; }, "the decoder is causal");
  refused([](auto& c) { c.encoder_layers = -1; }, "layers must be positive, got -1");
  refused([](auto& c) { c.source_vocabulary = -5; }, "-5");
  refused([](auto& c) { c.encoder_norm = "nonsense"; }, "there is no norm 'nonsense'");
  TransformerConfig config = tiny();
  config.encoder_norm = "rmsnorm";
  CHECK_THROWS_WITH(GPT(config), ContainsSubstring("are an encoder-decoder's"));
  config = tiny();
  config.decoder_norm = "instancenorm";
  Seq2Seq mixing(config);
  CHECK_THROWS_WITH(mixing.start(tokens(1, 3, 1), {}, 4), ContainsSubstring("'instancenorm'"));
  Seq2Seq model(tiny());
  CHECK_THROWS_WITH(model.logits(tokens(2, 3, 1), tokens(1, 3, 1)),
                    ContainsSubstring("2 sources and 1 targets"));
  CHECK_THROWS_WITH(model.logits(tokens(1, 9, 1), tokens(1, 3, 1)),
                    ContainsSubstring("9 tokens are more than the model's context of 8"));
}

TEST_CASE("every_state_of_an_encoder_sees_all_tokens_but_padding") {
  TransformerConfig config = tiny();
  config.encoder_layers = 0;
  Encoder encoder(config);
  convert(encoder, DType::f64);
  const Tensor ids = tokens(1, 5, 1);
  const Context context{.lengths = Tensor::from<int32_t>({4})};
  const auto before = values_of(encoder.forward(ids, context));
  ids.data<int32_t>()[4] = 3;
  auto after = values_of(encoder.forward(ids, context));
  for (size_t i = 0; i < 4 * 8; ++i) REQUIRE(after[i] == before[i]);
  ids.data<int32_t>()[3] = 9;
  after = values_of(encoder.forward(ids, context));
  for (size_t t = 0; t < 4; ++t) CHECK(after[t * 8] != before[t * 8]);
}
