// Trains a translator on parallel text, scores it, and translates with it.
//
//   translate train --out runs/tolu --seconds 120         an embedded language pair
//   translate train --src FILE --tgt FILE --val-src FILE --val-tgt FILE --out DIR --seconds 2400
//   translate evaluate --checkpoint DIR --src FILE --ref FILE --lowercase
//   translate run --checkpoint DIR < source > target
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/threads.h"
#include "data/bpe.h"
#include "data/languages.h"
#include "data/lines.h"
#include "data/unicode.h"
#include "examples/translate_options.h"
#include "train/attention_plot.h"
#include "train/files.h"
#include "train/format.h"
#include "train/model_config.h"
#include "train/progress.h"
#include "train/translation_scores.h"
#include "train/translator.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C asks the run to save and end; the next one kills it.
void on_interrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

struct Texts {
  std::vector<SentencePair> training, validation;
};

Texts read_texts(const TranslateOptions& o) {
  if (o.src.empty()) {
    check(o.tgt.empty() && o.val_src.empty() && o.val_tgt.empty(),
          "--src is missing; it goes with --tgt, --val-src and --val-tgt");
    Texts texts{generate_pairs(1, 20'000), generate_pairs(2, 500)};
    return texts;
  }
  check(!o.tgt.empty() && !o.val_src.empty() && !o.val_tgt.empty(),
        "--src goes with --tgt, --val-src and --val-tgt");
  return {read_pairs(o.src, o.tgt), read_pairs(o.val_src, o.val_tgt)};
}

std::shared_ptr<const Tokenizer> learn(const TranslateOptions& o, const Texts& texts, bool source,
                                       bool target) {
  BpeTrainer trainer;
  const auto add = [&](const std::string& sentence) {
    trainer.add(" " + (o.lowercase ? lower_case(sentence) : sentence));
  };
  for (const SentencePair& pair : texts.training) {
    if (source) add(pair.source);
    if (target) add(pair.target);
  }
  return trainer.train(o.merges);
}

SentenceCoders make_coders(const TranslateOptions& o, const Texts& texts) {
  check(o.tokenizer.empty() || !o.separate, "--tokenizer serves both sides; leave --separate out");
  const auto source =
      o.tokenizer.empty() ? learn(o, texts, true, !o.separate) : load_tokenizer(o.tokenizer);
  const auto target = o.separate ? learn(o, texts, false, true) : source;
  return {SentenceCoder(source, o.lowercase), SentenceCoder(target, o.lowercase)};
}

// The options of the run that --out holds; those that belong to this call stay.
void take_options(TranslateOptions& o, const ModelFile& file) {
  const auto run = nlohmann::json::parse(file.run, nullptr, false);
  check(run.is_object() && run.contains("options") && run["options"].is_string(), o.out,
        ": not a checkpoint of translate train");
  TranslateOptions saved;
  CLI::App app;
  declare_translate_train(app, saved);
  app.get_option("--out")->required(false);
  std::istringstream text(run["options"].get<std::string>());
  app.parse_from_stream(text);
  saved.src = o.src, saved.tgt = o.tgt, saved.val_src = o.val_src, saved.val_tgt = o.val_tgt;
  saved.out = o.out, saved.threads = o.threads, saved.train.seconds = o.train.seconds;
  saved.resume = true;
  o = saved;
}

void announce(const TranslateOptions& o, Seq2Seq& model, const PairCorpus& training) {
  std::fprintf(stderr,
               "%s parameters; %s pairs with %s source and %s target tokens in %s batches; dropped "
               "%s pairs with an empty side and %s too long; %d threads; files go to %s\n",
               grouped(parameter_count(model)).c_str(), grouped(training.pairs()).c_str(),
               grouped(training.source_tokens()).c_str(), grouped(training.target_tokens()).c_str(),
               grouped(training.batches()).c_str(), grouped(training.empty_pairs()).c_str(),
               grouped(training.long_pairs()).c_str(), num_threads(), o.out.c_str());
}

TrainEvents show_on(Progress& progress, const TranslationTask& task, const Texts& texts) {
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult& result, double speed) {
    progress.update(step, result.loss, speed);
  };
  events.on_evaluation = [&](int64_t step, double loss) {
    std::string note = "step " + std::to_string(step) + ": validation loss " + fixed(loss, 4) +
                       ", BLEU " + fixed(*task.latest().bleu, 2) + " (greedy, lower case), " +
                       fixed(100 * task.padding(), 1) + " % padding\n";
    for (size_t i = 0; i < std::min<size_t>(2, task.translations().size()); ++i)
      note += "  " + texts.validation[i].source + "\n  > " + task.translations()[i] + "\n";
    progress.note(note);
  };
  events.on_average = [&](int64_t count) {
    progress.note("mean of the last " + std::to_string(count) + " evaluations' weights: loss " +
                  fixed(task.latest().loss, 4) + ", BLEU " + fixed(*task.latest().bleu, 2) + "\n");
  };
  events.should_stop = [] { return interrupted != 0; };
  return events;
}

void print_end(const TranslateOptions& o, const TrainResult& result) {
  std::printf("checkpoint   %s/best.safetensors (chosen on the validation set: %s)\n",
              o.out.c_str(),
              result.averaged ? ("mean of " + std::to_string(result.averaged)).c_str()
                              : ("step " + std::to_string(result.best_step)).c_str());
  std::printf("curves       %s/curves.svg, numbers in %s/metrics.jsonl\n", o.out.c_str(),
              o.out.c_str());
  if (result.end == TrainResult::End::stopped)
    std::printf("stopped      go on with: translate train --out %s --resume and the same texts\n",
                o.out.c_str());
  if (o.src.empty()) std::printf("perfect      BLEU 100: every source has one translation\n");
  std::printf("best validation BLEU %.2f after %lld steps\n", -result.best_loss,
              static_cast<long long>(result.steps));
}

void train(CLI::App& app, TranslateOptions o) {
  const bool holds = has_checkpoint(o.out);
  check(holds || !o.resume, "--resume: ", o.out, " holds no checkpoint");
  check(!holds || o.resume || o.overwrite, o.out,
        " holds a run already; go on with it by --resume, replace it by --overwrite, or choose "
        "another --out");
  const ModelFile before = o.resume ? read_model_file(o.out) : ModelFile{};
  const std::string given = app.config_to_str(true);
  if (o.resume) take_options(o, before);
  if (o.threads > 0) set_num_threads(static_cast<int>(o.threads));
  const Texts texts = read_texts(o);
  const SentenceCoders coders =
      o.resume ? coders_from_json(before.tokenizer) : make_coders(o, texts);
  const PairOptions batches{
      .batch_tokens = o.batch_tokens, .longest = o.longest, .seed = o.train.seed};
  const PairCorpus training(texts.training, coders.source, coders.target, batches);
  const PairCorpus validation(texts.validation, coders.source, coders.target, batches);
  o.model.vocabulary = coders.target.vocabulary();
  o.model.source_vocabulary = o.separate ? coders.source.vocabulary() : 0;
  o.model.context = std::max(o.model.context, o.longest);
  o.model.tied = !o.untied;
  Seq2Seq model(o.model, o.train.seed);
  TranslationTask task(model, coders, training, validation, texts.validation,
                       {.accumulate = o.train.accumulate,
                        .smoothing = o.smoothing,
                        .bleu_sentences = o.bleu_sentences});
  o.train.schedule = {
      .name = o.schedule, .lr = o.lr, .min_lr = o.min_lr, .warmup = o.warmup, .steps = o.steps};
  o.train.out = o.out;
  const std::string options =
      o.resume ? nlohmann::json::parse(before.run)["options"].get<std::string>() : given;
  o.train.description = {to_json(o.model), to_json(coders),
                         nlohmann::json{{"options", options}}.dump(
                             -1, ' ', false, nlohmann::json::error_handler_t::replace)};
  Trainer trainer(task, o.train);
  const FolderLock lock(o.out);
  if (o.resume) trainer.resume();
  if (o.overwrite) remove_checkpoint(o.out);
  announce(o, model, training);
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  Progress progress(o.steps, trainer.step());
  const TrainResult result = trainer.run(0, show_on(progress, task, texts));
  progress.finish();
  print_end(o, result);
}

void evaluate(const TranslateOptions& o, const std::string& src, bool lowercase) {
  Translator translator = load_translator(o.checkpoint);
  const std::vector<SentencePair> pairs = read_pairs(src, o.ref);
  std::vector<std::string> sources, references;
  for (const SentencePair& pair : pairs) {
    sources.push_back(pair.source);
    references.push_back(pair.target);
  }
  const auto start = std::chrono::steady_clock::now();
  const TranslationRun run =
      translate_sentences(*translator.model, translator.coders, sources, o.decoding);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const Bleu score = bleu(run.sentences, references, lowercase);
  std::printf("%zu sentences in %.2f s, %.1f a second; mean model score %.4f\n", sources.size(),
              seconds.count(), static_cast<double>(sources.size()) / seconds.count(),
              run.mean_score);
  if (run.cut)
    std::printf("%s sources were cut to the model's context\n", grouped(run.cut).c_str());
  std::printf("precisions %.1f/%.1f/%.1f/%.1f, brevity penalty %.3f (%lld tokens to %lld)\n",
              score.precisions[0], score.precisions[1], score.precisions[2], score.precisions[3],
              score.brevity_penalty, static_cast<long long>(score.hypothesis_tokens),
              static_cast<long long>(score.reference_tokens));
  std::printf("BLEU = %.2f chrF2 = %.2f\n", score.score,
              chrf2(run.sentences, references, lowercase));
  std::printf("BLEU %s chrF2 %s\n", bleu_signature(lowercase).c_str(),
              chrf2_signature(lowercase).c_str());
}

// The tokens of a sentence and its end, as the picture names them.
std::vector<std::string> labels(const SentenceCoder& coder, const std::vector<int32_t>& ids) {
  std::vector<std::string> result;
  for (const int32_t id : ids) result.push_back(coder.tokenizer().decode(id));
  result.push_back("(end)");
  return result;
}

void draw_attention(Translator& translator, const std::string& source, const std::string& target,
                    const std::string& path) {
  const auto from = translator.coders.source.encode(source);
  const auto to = translator.coders.target.encode(target);
  check(!from.empty(), "--attention: the first sentence is empty");
  write_attention(path, labels(translator.coders.source, from),
                  labels(translator.coders.target, to),
                  attention_of(*translator.model, from, to, translator.coders.source.end(),
                               translator.coders.target.end()));
}

void run(const TranslateOptions& o) {
  Translator translator = load_translator(o.checkpoint);
  std::vector<std::string> sources;
  for (std::string line; std::getline(std::cin, line);) sources.push_back(line);
  const TranslationRun run =
      o.sample ? sample_sentences(*translator.model, translator.coders, sources, o.sampling, o.seed)
               : translate_sentences(*translator.model, translator.coders, sources, o.decoding);
  for (const std::string& sentence : run.sentences) std::puts(sentence.c_str());
  check(std::fflush(stdout) == 0 && !std::ferror(stdout), "the output cannot be written");
  if (run.cut)
    std::fprintf(stderr, "translate: %s lines are longer than the model's context and were cut\n",
                 grouped(run.cut).c_str());
  if (!o.attention.empty() && !sources.empty())
    draw_attention(translator, sources[0], run.sentences[0], o.attention);
}

}  // namespace

int main(int argc, char** argv) {
  TranslateOptions options;
  std::string src;
  bool lowercase = false;
  CLI::App app("Trains a translator on parallel text, scores it, and translates with it.");
  app.require_subcommand(1);
  CLI::App* const train_command = app.add_subcommand("train", "Train a translator");
  declare_translate_train(*train_command, options);
  CLI::App* const evaluate_command = app.add_subcommand("evaluate", "Score it on a test set");
  declare_decoding(*evaluate_command, options);
  evaluate_command->add_option("--src", src, "Source sentences, one a line")->required();
  evaluate_command->add_option("--ref", options.ref, "Reference translations")->required();
  evaluate_command->add_flag("--lowercase", lowercase, "Score in lower case");
  CLI::App* const run_command = app.add_subcommand("run", "Translate lines of standard input");
  declare_decoding(*run_command, options);
  run_command->add_flag("--sample", options.sample, "Draw each token instead of searching");
  run_command->add_option("--temperature", options.sampling.temperature, "Of --sample");
  run_command->add_option("--top-k", options.sampling.top_k, "Of --sample; 0: no limit");
  run_command->add_option("--top-p", options.sampling.top_p, "Of --sample");
  run_command->add_option("--seed", options.seed, "Of --sample");
  run_command->add_option("--attention", options.attention,
                          "Draw where the decoder looks in the first sentence, as an SVG file");
  CLI11_PARSE(app, argc, argv);
  try {
    if (*evaluate_command || *run_command)
      if (options.threads > 0) set_num_threads(static_cast<int>(options.threads));
    if (*train_command) train(*train_command, options);
    if (*evaluate_command) evaluate(options, src, lowercase);
    if (*run_command) run(options);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "translate: out of memory; a smaller --batch-tokens needs less\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "translate: %s\n", error.what());
    return 1;
  }
}
