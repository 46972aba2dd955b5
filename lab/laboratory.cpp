#include "lab/laboratory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "core/threads.h"
#include "data/languages.h"
#include "data/stories.h"
#include "train/evaluation.h"
#include "train/trainer.h"

namespace tapeformer::lab {
namespace {

// Stories with a sentence on each line: the generated stand-in for a list of names.
std::string sentences(const std::string& stories) {
  std::string result;
  for (size_t i = 0; i < stories.size(); ++i) {
    const bool ends = stories[i] == ' ' && i > 0 && stories[i - 1] == '.';
    result += ends ? '\n' : stories[i];
  }
  return result;
}

Text text_or_generated(const std::string& path, size_t bytes, bool one_sentence_a_line) {
  if (!path.empty()) return Text::from_file(path);
  const std::string stories = generate_stories(1, bytes);
  return one_sentence_a_line ? Text(sentences(stories), "sentences of the embedded stories")
                             : Text(stories, "the embedded stories");
}

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

ParallelText read_parallel_text(const Laboratory::Options& o) {
  if (o.src.empty() && o.tgt.empty() && o.val_src.empty() && o.val_tgt.empty()) return {};
  check(!o.src.empty() && !o.tgt.empty(), "lab: parallel text needs both --src and --tgt");
  check(o.val_src.empty() == o.val_tgt.empty(), "lab: --val-src and --val-tgt go together");
  ParallelText text{read_pairs(o.src, o.tgt), {}};
  if (!o.val_src.empty()) {
    text.validation = read_pairs(o.val_src, o.val_tgt);
    return text;
  }
  const size_t held_out = std::min<size_t>(1000, text.training.size() / 20);
  check(held_out > 0, "lab: '", o.src, "' has ", text.training.size(),
        " lines, too few to hold out a twentieth; give --val-src and --val-tgt");
  text.validation.assign(text.training.end() - held_out, text.training.end());
  text.training.resize(text.training.size() - held_out);
  return text;
}

std::string name_of_pairs(const Laboratory::Options& o) {
  if (o.src.empty()) return "the embedded language pair";
  return file_name(o.src) + " with " + file_name(o.tgt) +
         (o.val_src.empty() ? "" : ", validated on " + file_name(o.val_src));
}

TransformerConfig reference_model(int64_t vocabulary, int64_t context, int64_t layers,
                                  const std::string& norm, const std::string& placement) {
  return {.vocabulary = vocabulary,
          .context = context,
          .layers = layers,
          .heads = 4,
          .channels = 64,
          .norm = norm,
          .placement = placement,
          .activation = "relu",
          .initialization = "xavier",
          .tied = false};
}

constexpr int64_t text_context = 64, line_context = 32;

double mean_of_last_tenth(const std::vector<double>& losses) {
  const size_t count = std::max<size_t>(1, losses.size() / 10);
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / count;
}

}  // namespace

OneThread::OneThread() : before(num_threads()) { set_num_threads(1); }
OneThread::~OneThread() { set_num_threads(before); }

Laboratory::Laboratory(const Options& options)
    : options_(options),
      text_(text_or_generated(options.data, options.quick ? 400'000 : 1'000'000, false)),
      lines_(text_or_generated(options.lines, 300'000, true)),
      text_tokenizer_(make_tokenizer("character", text_.view())),
      lines_tokenizer_(make_tokenizer("character", lines_.view())),
      pairs_(read_parallel_text(options)) {
  check(options.seeds >= 1 && options.seeds <= 1000, "lab: --seeds must lie in 1 ... 1000, got ",
        options.seeds);
}

std::vector<uint64_t> Laboratory::seeds() const {
  std::vector<uint64_t> result(options_.seeds);
  for (size_t i = 0; i < result.size(); ++i) result[i] = i + 1;
  return result;
}

std::string Laboratory::name_of(Data data) const {
  return data == Data::text    ? file_name(text_.name())
         : data == Data::lines ? file_name(lines_.name())
         : data == Data::pairs ? name_of_pairs(options_)
                               : "random numbers";
}

std::string Laboratory::text_identity() const {
  return file_name(text_.name()) + " " + text_.fingerprint();
}

void Laboratory::log(const std::string& line) const {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (options_.log) options_.log(line);
}

TransformerConfig Laboratory::reference(int64_t layers, const std::string& norm,
                                        const std::string& placement) const {
  return reference_model(text_tokenizer_->vocabulary_size(), text_context, layers, norm, placement);
}

TransformerConfig Laboratory::reference_of_lines(int64_t layers, const std::string& norm,
                                                 const std::string& placement) const {
  return reference_model(lines_tokenizer_->vocabulary_size(), line_context, layers, norm,
                         placement);
}

TextCorpus Laboratory::text(int64_t batch, int64_t context, uint64_t seed) const {
  return {text_, *text_tokenizer_, {.rows = batch, .context = context, .seed = seed}};
}

LineCorpus Laboratory::lines(int64_t batch, int64_t context, uint64_t seed) const {
  return {lines_, *lines_tokenizer_, {.rows = batch, .context = context, .seed = seed}};
}

ParallelText Laboratory::pairs() const {
  if (!pairs_.training.empty()) return pairs_;
  return {generate_pairs(1, size(20'000, 6'000)), generate_pairs(2, size(500, 100))};
}

namespace {

Outcome train_new(const Corpus& corpus, const Trial& trial) {
  const auto model = std::make_shared<GPT>(trial.model, trial.seed);
  if (trial.prepare) trial.prepare(*model);
  Outcome outcome = train(*model, corpus, trial);
  outcome.model = model;
  return outcome;
}

}  // namespace

Outcome Laboratory::train_on_text(const Trial& trial) const {
  return train_new(text(trial.batch, trial.model.context, trial.seed), trial);
}

Outcome Laboratory::train_on_lines(const Trial& trial) const {
  return train_new(lines(trial.batch, trial.model.context, trial.seed), trial);
}

void Laboratory::for_each(int64_t n, const std::function<void(int64_t)>& f) const {
  const OneThread threads;
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (int64_t i = next++; i < n; i = next++) {
      try {
        f(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = n;
      }
    }
  };
  std::vector<std::jthread> workers;
  for (int64_t i = 1; i < std::min<int64_t>(n, threads.before); ++i) workers.emplace_back(work);
  work();
  workers.clear();  // waits
  if (failure) std::rethrow_exception(failure);
}

Outcome train(GPT& model, const Corpus& corpus, const Trial& trial) {
  const auto start = std::chrono::steady_clock::now();
  Parameters parameters(model);
  AdamW optimizer(parameters, trial.adamw);
  Outcome outcome;
  try {
    for (int64_t step = 0; step < trial.steps; ++step) {
      const double rise = step < trial.warmup ? (step + 1.0) / trial.warmup : 1;
      outcome.losses.push_back(training_step(model, parameters, optimizer, corpus, step,
                                             trial.accumulate, rise * trial.lr, trial.clip,
                                             trial.seed)
                                   .loss);
      if (trial.after_step) trial.after_step(step + 1, model);
    }
    if (!outcome.losses.empty()) outcome.training_loss = mean_of_last_tenth(outcome.losses);
    outcome.validation_loss = evaluate(model, corpus, trial.validation_batches);
  } catch (const NotFiniteError&) {
    outcome.diverged = true;
  }
  if (!std::isfinite(outcome.validation_loss)) outcome.diverged = true;
  // A model that has learned the frequencies alone is within a few hundredths of their entropy.
  outcome.stuck = !outcome.diverged && outcome.training_loss > unigram_entropy(corpus) - 0.1;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

double unigram_entropy(const Corpus& corpus) {
  std::map<int32_t, double> counts;
  double total = 0;
  const int64_t batches = std::min<int64_t>(corpus.validation_batches(), 64);
  for (int64_t i = 0; i < batches; ++i) {
    for (const int32_t target : corpus.validation_batch(i, batches).targets.to_vector<int32_t>()) {
      if (target < 0) continue;
      ++counts[target];
      ++total;
    }
  }
  double entropy = 0;
  for (const auto& [token, count] : counts) entropy -= count / total * std::log(count / total);
  return entropy;
}

}  // namespace tapeformer::lab
