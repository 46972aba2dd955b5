// What is done with a model besides training it gives on a GPU what it gives on the CPU.
#include <cmath>

#include "data/languages.h"
#include "tests/catch.h"
#include "tests/lively_model.h"
#include "tests/temporary_folder.h"
#include "train/batch_statistics.h"
#include "train/checkpoint.h"
#include "train/generation.h"
#include "train/profile.h"
#include "train/translator.h"

using namespace tapeformer;

TEST_CASE("cuda_generates_the_text_of_the_cpu") {
  const Stories stories;
  GPT model(stories.config("layernorm"), 1);
  const std::string cpu = generate_text(model, *stories.tokenizer, "", 30, {}, 1);
  convert(model, DType::f32, Device::cuda);
  CHECK(generate_text(model, *stories.tokenizer, "", 30, {}, 1) == cpu);
}

TEST_CASE("cuda_translates_as_the_cpu_does") {
  const auto pairs = generate_pairs(1, 100);
  const SentenceCoders coders = learn_coders(pairs, 100, false);
  Seq2Seq model({.vocabulary = coders.target.vocabulary(),
                 .context = 40,
                 .layers = 2,
                 .heads = 2,
                 .channels = 16,
                 .position = "rotary",
                 .encoder_layers = 1},
                1);
  randomise(model, 5);
  std::vector<std::string> sentences;
  for (int i = 0; i < 5; ++i) sentences.push_back(pairs[i].source);
  const std::vector<int32_t> source = coders.source.encode(sentences[0]), target = {3, 5};
  const auto all = [&] {
    std::vector<std::string> lines;
    const auto add = [&](const TranslationRun& run) {
      lines.insert(lines.end(), run.sentences.begin(), run.sentences.end());
    };
    add(translate_sentences(model, coders, sentences, {.beam = 1, .longest = 12}));
    add(translate_sentences(model, coders, sentences, {.beam = 3, .longest = 12}));
    add(sample_sentences(model, coders, sentences, {.temperature = 1}, 1));
    return lines;
  };
  const auto looks = [&] {
    return attention_of(model, source, target, coders.source.end(), coders.target.end());
  };
  const std::vector<std::string> lines = all();
  const auto weights = looks();
  convert(model, DType::f32, Device::cuda);
  CHECK(all() == lines);
  const auto on_gpu = looks();
  REQUIRE(weights.size() == target.size() + 1);
  REQUIRE(on_gpu.size() == weights.size());
  for (size_t t = 0; t < weights.size(); ++t)
    for (size_t s = 0; s < weights[t].size(); ++s)
      CHECK(std::abs(on_gpu[t][s] - weights[t][s]) < 1e-5);
}

namespace {

// Everything that the programs look at in a model, as numbers.
std::vector<double> looked_at(GPT& model, const Corpus& corpus) {
  std::vector<double> numbers;
  const Batch batch = corpus.training_batch(0, 0);
  for (const bool training : {false, true}) {
    const LeakReport report = leak_test(model, batch.inputs, training);
    for (const LogitChange& change : {report.later_token, report.own_tokens, report.other_sample})
      numbers.insert(numbers.end(), {change.largest, change.mean});
    numbers.insert(numbers.end(),
                   {report.later_gradient, report.own_gradient, report.other_gradient});
  }
  const PrefixLoss prefix = prefix_evaluation(model, corpus, 1);
  numbers.insert(numbers.end(), {prefix.teacher_forced, prefix.prefix});
  const Profile seen = profile(model, batch);
  numbers.insert(numbers.end(), seen.stream_rms.begin(), seen.stream_rms.end());
  for (const NamedValue& gradient : seen.gradient_norms) numbers.push_back(gradient.value);
  if (has_running_statistics(model)) {
    for (const NamedValue& distance : statistics_distance(model, batch))
      numbers.push_back(distance.value);
    const StatisticsLosses losses = compare_statistics(model, corpus, 2, 1);
    numbers.insert(numbers.end(), {losses.running, losses.batch, losses.recalibrated});
  }
  return numbers;
}

}  // namespace

TEST_CASE("cuda_shows_of_a_model_what_the_cpu_does") {
  const Stories stories(true);
  for (const char* norm : {"layernorm", "batchnorm", "powernorm", "instancenorm"}) {
    INFO(norm);
    GPT model(stories.config(norm), 1);
    randomise(model, 5);
    const std::vector<double> cpu = looked_at(model, *stories.corpus);
    convert(model, DType::f32, Device::cuda);
    const std::vector<double> gpu = looked_at(model, *stories.corpus);
    REQUIRE(gpu.size() == cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) {
      INFO(i);
      CHECK(std::abs(gpu[i] - cpu[i]) < 1e-4 * std::max(1.0, std::abs(cpu[i])));
    }
  }
}

TEST_CASE("cuda_weights_are_averaged_as_on_the_cpu") {
  const Stories stories;
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> files;
  GPT model(stories.config("batchnorm"), 1);
  for (uint64_t seed : {1, 2}) {
    randomise(model, seed);
    files.push_back(folder / (std::to_string(seed) + ".safetensors"));
    save_model(files.back(), {}, model);
  }
  load_average(files, model);
  const auto values = [&] {
    std::vector<std::vector<float>> all;
    for (const NamedTensor& entry : named_tensors(model))
      all.push_back(entry.tensor.to_vector<float>());
    return all;
  };
  const auto cpu = values();
  convert(model, DType::f32, Device::cuda);
  randomise(model, 3);
  load_average(files, model);
  CHECK(values() == cpu);
}
