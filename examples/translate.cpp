// Trains a translator on parallel text, scores it, and translates with it.
//
//   translate train --out runs/tolu --seconds 120         an embedded language pair
//   translate train --src FILE --tgt FILE --val-src FILE --val-tgt FILE --out DIR --seconds 2400
//   translate evaluate --checkpoint DIR --src FILE --ref FILE --lowercase
//   translate run --checkpoint DIR < source > target      line by line where it comes so
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/languages.h"
#include "data/lines.h"
#include "data/text.h"
#include "examples/interruption.h"
#include "examples/leak_warning.h"
#include "examples/translate_options.h"
#include "train/attention_plot.h"
#include "train/files.h"
#include "train/format.h"
#include "train/memory.h"
#include "train/model_config.h"
#include "train/progress.h"
#include "train/translation_scores.h"
#include "train/translator.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Texts {
  std::vector<SentencePair> training, validation;
};

Texts read_texts(const TranslateTrainOptions& o) {
  const bool all = !o.src.empty() && !o.tgt.empty() && !o.val_src.empty() && !o.val_tgt.empty();
  const bool none = o.src.empty() && o.tgt.empty() && o.val_src.empty() && o.val_tgt.empty();
  check(all || none, "--src, --tgt, --val-src and --val-tgt go together; give all or none");
  if (none) return {generate_pairs(1, 20'000), generate_pairs(2, 500)};
  return {read_pairs(o.src, o.tgt), read_pairs(o.val_src, o.val_tgt)};
}

// Tells whether a resumed run has its texts.
std::string fingerprint(const Texts& texts) {
  std::string all;
  for (const auto* pairs : {&texts.training, &texts.validation})
    for (const SentencePair& pair : *pairs) all += pair.source + '\n' + pair.target + '\n';
  return Text(std::move(all), "the texts").fingerprint();
}

SentenceCoders make_coders(const TranslateTrainOptions& o, const Texts& texts) {
  if (o.tokenizer.empty()) return learn_coders(texts.training, o.merges, o.lowercase, o.separate);
  const SentenceCoder both(load_tokenizer(o.tokenizer), o.lowercase);
  return {both, both};
}

void check_new_run(const CLI::App& app, const TranslateTrainOptions& o) {
  check(o.overwrite || !holds_run(o.out), o.out,
        " holds a run already; go on with it by --resume, replace it by --overwrite, or choose "
        "another --out");
  check(o.tokenizer.empty() || (!o.separate && !app.count("--merges")),
        "--tokenizer serves both sides as it is; leave --separate and --merges out");
  check_updates(app, o.train);
}

// What the checkpoint in --out says of its run: {"options", "text", "files"}.
nlohmann::json read_run(const TranslateTrainOptions& o) {
  check(!o.overwrite, "--resume and --overwrite contradict each other");
  check(has_checkpoint(o.out), "--resume: ", o.out, " holds no checkpoint");
  const nlohmann::json run = read_kept_run(o.out, "translate train", {"options", "text"});
  bool known = run.contains("files") && run["files"].is_array() && run["files"].size() == 4;
  if (known)
    for (const auto& file : run["files"]) known = known && file.is_string();
  check(known, o.out, ": not a checkpoint of translate train");
  return run;
}

// The options of the run in --out; those that belong to this call stay.
void take_options_from_checkpoint(const CLI::App& app, TranslateTrainOptions& o,
                                  const nlohmann::json& run) {
  TranslateTrainOptions saved;
  CLI::App saved_app;
  declare(saved_app, saved);
  saved_app.get_option("--out")->required(false);
  read_kept_options(saved_app, run["options"], app, o.out);
  const bool given =
      app.count("--src") + app.count("--tgt") + app.count("--val-src") + app.count("--val-tgt") > 0;
  const std::vector<std::string> files = run["files"];
  saved.src = given ? o.src : files[0];
  saved.tgt = given ? o.tgt : files[1];
  saved.val_src = given ? o.val_src : files[2];
  saved.val_tgt = given ? o.val_tgt : files[3];
  saved.program = o.program;
  saved.out = o.out;
  saved.threads = o.threads;
  if (app.count("--device")) saved.device = o.device;
  saved.train.seconds = o.train.seconds;
  saved.resume = true;
  o = saved;
}

nlohmann::json describe_run(const CLI::App& app, const TranslateTrainOptions& o,
                            const std::string& fingerprint) {
  nlohmann::json files;
  for (const std::string& file : {o.src, o.tgt, o.val_src, o.val_tgt})
    files.push_back(file.empty() ? "" : fs::absolute(file).string());
  return {{"options", app.config_to_str(true)}, {"text", fingerprint}, {"files", files}};
}

void announce(const TranslateTrainOptions& o, Seq2Seq& model, const PairCorpus& training) {
  std::fprintf(stderr,
               "%s parameters; %s pairs with %s source and %s target tokens in %s batches; dropped "
               "%s pairs with an empty side and %s too long; %d thread%s; files go to %s\n",
               grouped(parameter_count(model)).c_str(), grouped(training.pairs()).c_str(),
               grouped(training.source_tokens()).c_str(), grouped(training.target_tokens()).c_str(),
               grouped(training.batches()).c_str(), grouped(training.empty_pairs()).c_str(),
               grouped(training.long_pairs()).c_str(), num_threads(), num_threads() == 1 ? "" : "s",
               o.out.c_str());
}

TrainEvents show_on(Progress& progress, const Trainer& trainer, const TranslationTask& task,
                    const Texts& texts) {
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult& result, double speed) {
    progress.update(step, result.loss, speed, trainer.seconds_left());
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
  events.on_end = [](TrainResult::End) { release_interrupts(); };
  return events;
}

void print_end(const TranslateTrainOptions& o, const TrainResult& result) {
  const char* const out = o.out.c_str();
  const bool validated = std::isfinite(result.best_loss);
  const std::string chosen = result.averaged ? "mean of " + std::to_string(result.averaged)
                                             : "step " + std::to_string(result.best_step);
  const std::string model = validated
                                ? "best.safetensors (chosen on the validation set: " + chosen + ")"
                                : "model.safetensors";
  std::printf("checkpoint   %s/%s\n", out, model.c_str());
  std::printf("curves       %s/curves.svg, numbers in %s/metrics.jsonl\n", out, out);
  if (result.end == TrainResult::End::stopped)
    std::printf("stopped      go on with: %s\n",
                resume_command(o.program, "train --resume --out", o.out).c_str());
  if (result.end == TrainResult::End::no_gain)
    std::printf("stopped      %lld evaluations brought no gain (--patience)\n",
                static_cast<long long>(o.train.patience));
  if (o.src.empty()) std::printf("perfect      BLEU 100: every source has one translation\n");
  if (validated)
    std::printf("best validation BLEU %.2f after %lld steps\n", std::max(0.0, -result.best_loss),
                static_cast<long long>(result.steps));
}

void train(const CLI::App& app, TranslateTrainOptions o, Clock::time_point start) {
  nlohmann::json run;
  if (o.resume)
    take_options_from_checkpoint(app, o, run = read_run(o));
  else
    check_new_run(app, o);
  use_threads(o.threads);
  const DType dtype = find_dtype(o.dtype);
  const Device device = device_that_trains(o.dtype, o.device);
  const Texts texts = read_texts(o);
  const std::string text = fingerprint(texts);
  check(!o.resume || run["text"] == text, "these are not the texts that the run in ", o.out,
        " trains on; name the same ones with --src, --tgt, --val-src and --val-tgt");
  const SentenceCoders coders =
      o.resume ? coders_from_json(read_model_file(o.out).tokenizer) : make_coders(o, texts);
  const PairOptions batches{
      .batch_tokens = o.batch_tokens, .longest = o.longest, .seed = o.train.seed};
  const PairCorpus training(texts.training, coders.source, coders.target, batches);
  const PairCorpus validation(texts.validation, coders.source, coders.target, batches);
  o.model.vocabulary = coders.target.vocabulary();
  o.model.source_vocabulary = o.separate ? coders.source.vocabulary() : 0;
  o.model.context = std::max(o.model.context, o.longest);
  o.model.tied = !o.untied;
  TransformerConfig sizes = o.model;
  sizes.encoder_layers = encoder_shape(sizes).blocks;
  check_training_memory(sizes, dtype, 0, device);
  Seq2Seq model(o.model, o.train.seed);
  if (dtype != DType::f32 || device != Device::cpu) convert(model, dtype, device);
  warn_of_leak(norm_of(o.model, StackShape::Role::decoder), model.decoder_mixes(true),
               model.decoder_mixes(false));
  TranslationTask task(model, coders, training, validation, texts.validation,
                       {.accumulate = o.train.accumulate,
                        .smoothing = o.smoothing,
                        .bleu_sentences = o.bleu_sentences});
  if (!o.resume) run = describe_run(app, o, text);
  o.train.out = o.out;
  o.train.description = {to_json(o.model), to_json(coders),
                         run.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
  if (o.train.seconds > 0)  // they count from the start of the program
    o.train.seconds = std::max(1e-9, o.train.seconds - seconds_since(start));
  Trainer trainer(task, o.train);
  const FolderLock lock(o.out);
  if (o.resume) trainer.resume();
  if (o.overwrite) remove_checkpoint(o.out);  // all that could be wrong is checked
  announce(o, model, training);
  catch_interrupts();
  Progress progress(o.train.schedule.steps, trainer.step());
  const TrainResult result = trainer.run(0, show_on(progress, trainer, task, texts));
  progress.finish();
  print_skipped(result);
  print_end(o, result);
}

void evaluate(const TranslateOptions& o) {
  use_threads(o.threads);
  Translator translator = load_translator(o.checkpoint, find_device(o.device));
  std::vector<std::string> sources, references;
  for (SentencePair& pair : read_pairs(o.src, o.ref)) {
    sources.push_back(std::move(pair.source));
    references.push_back(std::move(pair.target));
  }
  const auto start = Clock::now();
  const TranslationRun run =
      translate_sentences(*translator.model, translator.coders, sources, o.decoding);
  const double seconds = seconds_since(start);
  const Bleu score = bleu(run.sentences, references, o.lowercase);
  std::printf("%zu sentences in %.2f s, %.1f a second; mean model score %.4f\n", sources.size(),
              seconds, static_cast<double>(sources.size()) / seconds, run.mean_score);
  if (run.cut)
    std::printf("%s sources were cut to the model's context\n", grouped(run.cut).c_str());
  std::printf("precisions %.1f/%.1f/%.1f/%.1f, brevity penalty %.3f (%lld tokens to %lld)\n",
              score.precisions[0], score.precisions[1], score.precisions[2], score.precisions[3],
              score.brevity_penalty, static_cast<long long>(score.hypothesis_tokens),
              static_cast<long long>(score.reference_tokens));
  std::printf("BLEU = %.2f chrF2 = %.2f\n", score.score,
              chrf2(run.sentences, references, o.lowercase));
  std::printf("BLEU %s chrF2 %s\n", bleu_signature(o.lowercase).c_str(),
              chrf2_signature(o.lowercase).c_str());
}

void run(const TranslateOptions& o) {
  use_threads(o.threads);
  Translator translator = load_translator(o.checkpoint, find_device(o.device));
  constexpr size_t block = 1000;  // lines: enough to batch those of equal length
  int64_t lines = 0, cut = 0;
  for_blocks_of_lines("-", block, [&](const std::vector<std::string>& sources) {
    const TranslationRun run =
        o.sample ? sample_sentences(*translator.model, translator.coders, sources, o.sampling,
                                    o.seed, lines)
                 : translate_sentences(*translator.model, translator.coders, sources, o.decoding);
    for (const std::string& sentence : run.sentences) {
      std::fwrite(sentence.data(), 1, sentence.size(), stdout);
      std::fputc('\n', stdout);
    }
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "the output cannot be written");
    if (lines == 0 && !o.attention.empty()) {
      check(!run.ids[0].source.empty(), "--attention: there is no first sentence to look at");
      write_attention(o.attention, translator, run.ids[0]);
    }
    lines += static_cast<int64_t>(sources.size());
    cut += run.cut;
  });
  if (cut)
    std::fprintf(stderr, "translate: %s lines are longer than the model's context and were cut\n",
                 grouped(cut).c_str());
  check(lines > 0 || o.attention.empty(), "--attention: there is no first sentence to look at");
}

}  // namespace

int main(int argc, char** argv) {
  const auto start = Clock::now();
  TranslateTrainOptions training;
  if (argc > 0) training.program = argv[0];
  TranslateOptions options;
  CLI::App app("Trains a translator on parallel text, scores it, and translates with it.");
  app.failure_message(option_failure);
  app.require_subcommand(1);
  CLI::App* const train_command = app.add_subcommand("train", "Train a translator");
  CLI::App* const evaluate_command = app.add_subcommand("evaluate", "Score it on a test set");
  CLI::App* const run_command =
      app.add_subcommand("run", "Translate lines of standard input, as they come");
  declare(*train_command, training);
  declare_scoring(*evaluate_command, options);
  declare_translating(*run_command, options);
  CLI11_PARSE(app, argc, argv);
  try {
    if (*train_command) train(*train_command, training, start);
    if (*evaluate_command) evaluate(options);
    if (*run_command) run(options);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "translate: out of memory; a smaller %s needs less\n",
                 *train_command ? "--batch-tokens" : "--beam");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "translate: %s\n", error.what());
    return 1;
  }
}
