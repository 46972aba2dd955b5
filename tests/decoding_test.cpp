// Decoding: greedy, beam search and sampling against plain enumeration, and the pictures of
// attention.
#include "train/decoding.h"

#include <cmath>
#include <map>

#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "train/attention_plot.h"
#include "train/format.h"

using namespace tapeformer;

namespace {

constexpr int32_t end_id = 4;  // of five

// Weights at which translations differ and end.
std::unique_ptr<Seq2Seq> lively(uint64_t seed, const std::string& decoder_norm = "",
                                int64_t context = 12) {
  TransformerConfig config{.vocabulary = 5,
                           .context = context,
                           .layers = 2,
                           .heads = 2,
                           .channels = 8,
                           .position = "sinusoidal",
                           .encoder_layers = 1,
                           .decoder_norm = decoder_norm};
  auto model = std::make_unique<Seq2Seq>(config, seed);
  initialize(*model, seed, [](const std::string&) { return 0.6; });
  return model;
}

const std::vector<std::vector<int32_t>> sentences{{1, 2, 3}, {3}, {0, 0, 2, 1, 3}, {2, 2}};

// log P(ids, end | source), from the whole sequence at once.
double log_probability(Seq2Seq& model, const std::vector<int32_t>& source,
                       const std::vector<int32_t>& ids) {
  std::vector<int32_t> inputs{end_id};
  inputs.insert(inputs.end(), ids.begin(), ids.end());
  const auto T = static_cast<int64_t>(inputs.size());
  const PaddedSentences read = pad({source}, end_id);
  const Tensor logits = model.logits(read.ids, Tensor::from(inputs, {1, T}));
  double sum = 0;
  for (int64_t t = 0; t < T; ++t) {
    const float* const row = logits.data<float>() + t * 5;
    double total = 0;
    for (int v = 0; v < 5; ++v) total += std::exp(row[v]);
    sum += row[t + 1 < T ? ids[t] : end_id] - std::log(total);
  }
  return sum;
}

// The best of all sequences of fewer than `longest` tokens and the end.
Translation exhaustive(Seq2Seq& model, const std::vector<int32_t>& source, size_t longest,
                       double alpha) {
  Translation best{{}, 0, -INFINITY};
  std::vector<std::vector<int32_t>> all{{}};
  for (size_t i = 0; i < all.size(); ++i) {
    const double log_p = log_probability(model, source, all[i]);
    const double score = log_p / std::pow((6 + static_cast<double>(all[i].size())) / 6, alpha);
    if (score > best.score) best = {all[i], log_p, score};
    if (all[i].size() + 1 == longest) continue;
    for (int32_t token = 0; token < 5; ++token)
      if (token != end_id) {
        all.push_back(all[i]);
        all.back().push_back(token);
      }
  }
  return best;
}

std::vector<int32_t> greedy(Seq2Seq& model, const std::vector<int32_t>& source, size_t longest) {
  std::vector<int32_t> inputs{end_id};
  while (inputs.size() < longest) {
    const auto T = static_cast<int64_t>(inputs.size());
    const Tensor logits = model.logits(pad({source}, end_id).ids, Tensor::from(inputs, {1, T}));
    const float* const row = logits.data<float>() + (T - 1) * 5;
    const auto token = static_cast<int32_t>(std::max_element(row, row + 5) - row);
    if (token == end_id) break;
    inputs.push_back(token);
  }
  return {inputs.begin() + 1, inputs.end()};
}

}  // namespace

TEST_CASE("a_beam_of_one_is_greedy") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto model = lively(seed);
    const auto translations = translate(*model, pad(sentences, end_id), end_id, {.beam = 1});
    for (size_t i = 0; i < sentences.size(); ++i) {
      CHECK(translations[i].ids == greedy(*model, sentences[i], 12));
      CHECK(translations[i].log_probability ==
            Approx(log_probability(*model, sentences[i], translations[i].ids)).margin(1e-4));
    }
  }
}

TEST_CASE("a_beam_as_wide_as_everything_finds_the_best_of_all") {
  for (uint64_t seed = 1; seed <= 3; ++seed)
    for (const double alpha : {0.0, 1.0}) {
      const auto model = lively(seed);
      const auto translations = translate(*model, pad(sentences, end_id), end_id,
                                          {.beam = 2000, .length_penalty = alpha, .longest = 5});
      for (size_t i = 0; i < sentences.size(); ++i) {
        const Translation best = exhaustive(*model, sentences[i], 5, alpha);
        CHECK(translations[i].ids == best.ids);
        CHECK(translations[i].score == Approx(best.score).margin(1e-4));
        CHECK(translations[i].log_probability == Approx(best.log_probability).margin(1e-4));
      }
    }
}

TEST_CASE("a_batch_and_each_sentence_alone_give_the_same_translation") {
  const auto model = lively(7);
  for (const int64_t beam : {1, 4}) {
    const auto together = translate(*model, pad(sentences, end_id), end_id, {.beam = beam});
    for (size_t i = 0; i < sentences.size(); ++i) {
      const auto alone = translate(*model, pad({sentences[i]}, end_id), end_id, {.beam = beam});
      CHECK(together[i].ids == alone[0].ids);
      CHECK(together[i].score == Approx(alone[0].score).margin(1e-4));
    }
  }
}

TEST_CASE("a_norm_that_mixes_times_is_decoded_without_a_cache") {
  const auto model = lively(3, "instancenorm");
  const auto translations = translate(*model, pad({{1, 2, 3}}, end_id), end_id, {.beam = 1});
  CHECK(translations[0].ids == greedy(*model, {1, 2, 3}, 12));
}

TEST_CASE("no_translation_is_longer_than_asked_or_than_the_context") {
  const auto model = lively(2, "", 7);
  for (const int64_t longest : {0, 1, 3})
    for (const int64_t beam : {1, 5})
      for (const Translation& translation :
           translate(*model, pad(sentences, end_id), end_id, {.beam = beam, .longest = longest}))
        CHECK(translation.ids.size() + 1 <= static_cast<size_t>(longest ? longest : 7));
}

TEST_CASE("the_length_penalty_prefers_longer_translations") {
  double lengths[2] = {0, 0};
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const auto model = lively(seed);
    for (const int i : {0, 1})
      for (const Translation& translation :
           translate(*model, pad(sentences, end_id), end_id,
                     {.beam = 50, .length_penalty = i == 0 ? 0.0 : 3.0, .longest = 6}))
        lengths[i] += static_cast<double>(translation.ids.size());
  }
  CHECK(lengths[1] > lengths[0]);
}

TEST_CASE("samples_follow_the_models_probabilities_and_their_seed") {
  const auto model = lively(4);
  const PaddedSentences source = pad({{1, 2, 3}}, end_id);
  std::map<std::vector<int32_t>, int> counts;
  constexpr int draws = 2000;
  for (uint64_t seed = 0; seed < draws; ++seed)
    ++counts[sample_translations(*model, source, end_id, {.temperature = 1}, {{seed}}, 3)[0].ids];
  // The empty translation has the probability of the end alone.
  const double expected = std::exp(log_probability(*model, {1, 2, 3}, {}));
  CHECK(std::abs(counts[{}] / double(draws) - expected) <
        4 * std::sqrt(expected * (1 - expected) / draws) + 1e-9);
  CHECK(counts.size() > 3);
  const auto cold = sample_translations(*model, source, end_id, {.temperature = 0}, {{1}});
  CHECK(cold[0].ids == translate(*model, source, end_id, {.beam = 1, .longest = 12})[0].ids);
  CHECK_THROWS_WITH(sample_translations(*model, source, end_id, {}, {}),
                    ContainsSubstring("0 keys for 1 sentences"));
}

TEST_CASE("a_sample_does_not_depend_on_what_else_is_in_the_batch") {
  const auto model = lively(6, "", 64);  // longer than twice the longest source and 10
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<RandomKey> keys;
    for (uint32_t i = 0; i < sentences.size(); ++i) keys.push_back({seed, Purpose::sampling, i});
    const auto together =
        sample_translations(*model, pad(sentences, end_id), end_id, {.temperature = 2}, keys);
    for (size_t i = 0; i < sentences.size(); ++i) {
      const auto alone = sample_translations(*model, pad({sentences[i]}, end_id), end_id,
                                             {.temperature = 2}, {keys[i]});
      CHECK(together[i].ids == alone[0].ids);
      CHECK(together[i].ids.size() < 2 * (sentences[i].size() + 1) + 10);
    }
  }
}

TEST_CASE("weights_that_are_not_finite_are_an_error_in_decoding") {
  const auto model = lively(1);
  for (const NamedTensor& entry : named_parameters(*model)) entry.tensor.data<float>()[0] = NAN;
  const PaddedSentences source = pad({{1, 2, 3}}, end_id);
  CHECK_THROWS_WITH(translate(*model, source, end_id, {}), ContainsSubstring("not finite"));
  CHECK_THROWS_WITH(sample_translations(*model, source, end_id, {}, {{1}}),
                    ContainsSubstring("not finite"));
}

TEST_CASE("decoding_options_without_sense_are_refused") {
  const auto model = lively(1);
  const PaddedSentences source = pad(sentences, end_id);
  for (const int64_t beam : {int64_t{-1}, int64_t{0}, int64_t{10'001}, INT64_MAX})
    CHECK_THROWS_WITH(translate(*model, source, end_id, {.beam = beam}),
                      ContainsSubstring("got " + std::to_string(beam)));
  CHECK_THROWS_WITH(translate(*model, source, end_id, {.longest = -1}), ContainsSubstring("-1"));
  CHECK_THROWS_WITH(translate(*model, source, end_id, {.length_penalty = NAN}),
                    ContainsSubstring("length penalty"));
}

TEST_CASE("attention_is_drawn_as_a_matrix_of_weights") {
  const auto model = lively(1);
  const auto weights = attention_of(*model, {1, 2, 3}, {0, 1}, end_id, end_id);
  REQUIRE(weights.size() == 3);
  for (const auto& row : weights) {
    REQUIRE(row.size() == 4);
    CHECK(row[0] + row[1] + row[2] + row[3] == Approx(1).margin(1e-5));
  }
  const TemporaryFolder folder;
  write_attention(folder / "a.svg", {"<a", "b", "c", "\xC3"}, {"x", "y&", "(end)"}, weights);
  const std::string svg = content(folder / "a.svg");
  size_t cells = 0;
  for (size_t at = 0; (at = svg.find("<title>", at)) != svg.npos; ++at) ++cells;
  CHECK(cells == 12);
  CHECK_THAT(svg, ContainsSubstring("&lt;a") && ContainsSubstring("y&amp;") &&
                      ContainsSubstring("\xEF\xBF\xBD"));
  CHECK_THAT(svg, ContainsSubstring("fill-opacity=\"" + fixed(weights[1][2], 4) + "\""));
  CHECK_THROWS_WITH(write_attention(folder / "b.svg", {"a"}, {"x"}, {{0.5, 0.5}}),
                    ContainsSubstring("2 weights for 1 tokens"));
}
