// Times the training steps of translate's default model beside the floor of their matrix products,
// and its decoding, greedy and by beam search.
//
//   bench_translate                                       on an embedded language pair
//   bench_translate --src train.de --tgt train.en --lowercase --threads 2
//   bench_translate --checkpoint runs/de-en --src test.de --tgt test.en    decoding alone
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "bench/floor.h"
#include "bench/translating.h"
#include "core/threads.h"
#include "data/languages.h"
#include "examples/translate_options.h"
#include "optim/schedule.h"
#include "train/number_option.h"
#include "train/translator.h"

using namespace tapeformer;
using namespace tapeformer::bench;

namespace {

struct Options {
  std::string src, tgt, checkpoint;
  bool lowercase = false, verbose = false;
  int rounds = 3, threads = 0;
  int64_t batches = 6, steps = 200, sentences = 500;
};

/// Pairs to train on, and others to translate.
struct Texts {
  std::vector<SentencePair> training, test;
};

Texts read_texts(const Options& o) {
  const auto count = static_cast<size_t>(o.sentences);
  if (o.src.empty()) return {generate_pairs(1, 20'000), generate_pairs(2, o.sentences)};
  Texts texts{read_pairs(o.src, o.tgt), {}};
  const bool decoding_alone = !o.checkpoint.empty();
  check(decoding_alone || texts.training.size() > count, "'", o.src, "' has ",
        texts.training.size(), " lines, and --sentences takes ", count, " of them away");
  const size_t first = texts.training.size() - std::min(count, texts.training.size());
  texts.test.assign(texts.training.begin() + static_cast<int64_t>(first), texts.training.end());
  texts.training.resize(first);
  return texts;
}

double share_of_padding(const PairCorpus& corpus) {
  double places = 0;
  for (int64_t i = 0; i < corpus.batches(); ++i) {
    const PairBatch batch = corpus.ordered_batch(i);
    places += static_cast<double>(batch.source.ids.numel() + batch.inputs.numel());
  }
  return 1 - static_cast<double>(corpus.source_tokens() + corpus.target_tokens()) / places;
}

// Batches from all lengths, each as frequent as in a pass.
std::vector<PairBatch> sample(const PairCorpus& corpus, int64_t count) {
  std::vector<PairBatch> batches;
  for (int64_t i = 0; i < count; ++i)
    batches.push_back(corpus.ordered_batch((2 * i + 1) * corpus.batches() / (2 * count)));
  return batches;
}

/// What was measured on one of the sampled batches.
struct Measurement {
  std::unique_ptr<Floor> floor;
  std::vector<double> steps;  // milliseconds
};

std::vector<Measurement> measure(Translating& translating, const TransformerConfig& config,
                                 const std::vector<PairBatch>& batches, const Options& o) {
  std::vector<Product> all;
  for (const PairBatch& batch : batches)
    for (const Product& product : products_of(config, batch)) all.push_back(product);
  const Operands operands(all, translating.parameters());
  std::vector<Measurement> measurements;
  for (const PairBatch& batch : batches) {
    translating.step(batch, 1e-5);  // takes the memory
    measurements.push_back(
        {std::make_unique<Floor>(products_of(config, batch), operands, num_threads()), {}});
  }
  for (int round = 0; round < o.rounds; ++round) {
    for (int repeat = 0; repeat < 5; ++repeat)
      for (size_t i = 0; i < batches.size(); ++i)
        measurements[i].steps.push_back(translating.step(batches[i], 1e-5));
    for (Measurement& m : measurements) m.floor->round();
  }
  return measurements;
}

void print_steps(const std::vector<PairBatch>& batches, const std::vector<Measurement>& measured,
                 bool verbose) {
  std::printf("%9s %9s %9s %9s %9s %9s %9s %6s\n", "sentences", "source", "target", "padding",
              "tokens/s", "step ms", "floor ms", "ratio");
  double tokens = 0, steps = 0, floors = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    const PairBatch& batch = batches[i];
    const double step = median(measured[i].steps), floor = measured[i].floor->ms();
    std::printf("%9ld %9ld %9ld %8.1f%% %9.0f %9.2f %9.2f %6.2f\n", batch.inputs.dim(0),
                batch.source.ids.dim(1), batch.inputs.dim(1), 100 * batch.padding(),
                1000 * static_cast<double>(batch.tokens) / step, step, floor, step / floor);
    tokens += static_cast<double>(batch.tokens);
    steps += step;
    floors += floor;
    if (verbose) measured[i].floor->print();
  }
  std::printf(
      "together: %.0f target tokens per second, padding excluded; step %.2f ms, floor %.2f "
      "ms, ratio %.2f\n",
      1000 * tokens / steps, steps / static_cast<double>(batches.size()),
      floors / static_cast<double>(batches.size()), steps / floors);
}

void time_decoding(Seq2Seq& model, const SentenceCoders& coders,
                   const std::vector<SentencePair>& pairs, int rounds) {
  std::vector<std::string> sources;
  double references = 0;
  for (const SentencePair& pair : pairs) {
    sources.push_back(pair.source);
    references += static_cast<double>(coders.target.encode(pair.target).size());
  }
  const auto count = static_cast<double>(pairs.size());
  for (const int64_t beam : {1, 5}) {
    TranslationRun run;
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round)
      times.push_back(
          milliseconds([&] { run = translate_sentences(model, coders, sources, {.beam = beam}); }));
    double tokens = 0;
    for (const std::string& sentence : run.sentences)
      tokens += static_cast<double>(coders.target.encode(sentence).size());
    std::printf(
        "beam %ld: %.1f sentences per second; %zu translations of %.1f tokens on average, "
        "references of %.1f\n",
        beam, 1000 * count / median(times), pairs.size(), tokens / count, references / count);
  }
}

// Some steps before the decoding: a model that knows nothing writes endlessly.
void train(Translating& translating, const PairCorpus& corpus, double lr, int64_t steps) {
  const ScheduleOptions schedule{
      .name = "invsqrt", .lr = lr, .warmup = std::max<int64_t>(1, steps / 4), .steps = steps};
  for (int64_t step = 0; step < steps; ++step)
    translating.step(corpus.training_batch(step), learning_rate(schedule, step));
}

void run(const Options& o) {
  check(o.src.empty() == o.tgt.empty(), "--src and --tgt go together");
  check(o.rounds >= 1 && o.rounds <= 1000, "--rounds must lie in 1 ... 1000, got ", o.rounds);
  check(o.threads >= 0 && o.threads <= 1024, "--threads must lie in 0 ... 1024, got ", o.threads);
  check(o.batches >= 1 && o.batches <= 1000, "--batches must lie in 1 ... 1000, got ", o.batches);
  check(o.steps >= 0, "--steps must not be negative, got ", o.steps);
  check(o.sentences >= 1 && o.sentences <= 1'000'000, "--sentences must lie in 1 ... 1000000, got ",
        o.sentences);
  if (o.threads > 0) set_num_threads(o.threads);
  std::printf("%d threads\n", num_threads());
  const Texts texts = read_texts(o);
  if (!o.checkpoint.empty()) {
    const Translator translator = load_translator(o.checkpoint);
    return time_decoding(*translator.model, translator.coders, texts.test, o.rounds);
  }
  const TranslateTrainOptions defaults;
  const SentenceCoders coders = learn_coders(texts.training, defaults.merges, o.lowercase);
  const PairCorpus corpus(texts.training, coders.source, coders.target,
                          {.batch_tokens = defaults.batch_tokens, .longest = defaults.longest});
  TransformerConfig config = defaults.model;
  config.vocabulary = coders.target.vocabulary();
  config.context = std::max(config.context, defaults.longest);
  Translating translating(config, defaults.train.adamw, defaults.train.clip, defaults.smoothing);
  std::printf(
      "%ld parameters, %ld words; a pass has %ld batches of %.0f target tokens, of their "
      "places %.1f %% are padding\n",
      translating.parameters(), config.vocabulary, corpus.batches(),
      static_cast<double>(corpus.target_tokens()) / static_cast<double>(corpus.batches()),
      100 * share_of_padding(corpus));
  train(translating, corpus, defaults.train.schedule.lr, o.steps);
  const std::vector<PairBatch> batches = sample(corpus, o.batches);
  print_steps(batches, measure(translating, config, batches, o), o.verbose);
  time_decoding(translating.model(), coders, texts.test, o.rounds);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Times a translator: training steps beside the floor of their products, and decoding");
  app.option_defaults()->always_capture_default();
  app.add_option("--src", o.src, "Source sentences, one a line; without it, an embedded pair");
  app.add_option("--tgt", o.tgt, "Their translations, line by line");
  app.add_flag("--lowercase", o.lowercase, "Everything in lower case");
  app.add_option("--checkpoint", o.checkpoint,
                 "Decode with this translator, and time nothing else");
  app.add_option("--batches", o.batches, "Batches of different lengths that are measured")
      ->check(number_objection<int64_t>);
  app.add_option("--steps", o.steps, "Training steps before anything is measured")
      ->check(number_objection<int64_t>);
  app.add_option("--sentences", o.sentences, "The last of the pairs, which are decoded")
      ->check(number_objection<int64_t>);
  app.add_option("--rounds", o.rounds, "Rounds of steps and floor in turn, and of decoding")
      ->check(number_objection<int>);
  app.add_option("--threads", o.threads, "0: all that this process may use")
      ->check(number_objection<int>);
  app.add_flag("--verbose", o.verbose, "Also print the floors, product by product");
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_translate: %s\n", error.what());
    return 1;
  }
}
