// Trains a GPT on the embedded stories or on any text, and samples from it.
//
//   train_gpt                                     a small model on generated stories
//   train_gpt --data FILE --layers 6 --channels 384 --heads 6 --context 256 --dropout 0.2
//   train_gpt --resume runs/1                     goes on where a run stopped
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/stories.h"
#include "examples/interruption.h"
#include "examples/leak_warning.h"
#include "examples/train_gpt_inspection.h"
#include "examples/train_gpt_options.h"
#include "train/files.h"
#include "train/format.h"
#include "train/generation.h"
#include "train/memory.h"
#include "train/model_config.h"
#include "train/progress.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

// A new folder runs/1, runs/2, ...; creating it claims it.
fs::path fresh_folder() {
  fs::create_directories("runs");
  for (int i = 1;; ++i) {
    const fs::path folder = fs::path("runs") / std::to_string(i);
    if (fs::create_directory(folder)) return folder;
  }
}

// Replaces the options by those of the checkpoint. Options that shape the run and were given again
// must agree with it.
void take_options_from_checkpoint(CLI::App& app, TrainGptOptions& options, nlohmann::json& run) {
  check(options.resume.empty() || options.out.empty() || options.resume == options.out, "--resume ",
        options.resume, " and --out ", options.out, " name two runs; name one");
  check(!options.overwrite && !options.doctor,
        "--resume goes with neither --overwrite nor --doctor");
  if (!options.resume.empty()) options.out = options.resume;
  if (fs::path(options.out).filename() == "model.safetensors")
    options.out = fs::path(options.out).parent_path().string();
  check(!options.out.empty(), "--resume: which run? Name its folder: --resume runs/1");
  check(has_checkpoint(options.out), options.out, " holds no checkpoint to resume");
  run = read_kept_run(options.out, "train_gpt", {"options", "text", "data"});
  TrainGptOptions saved;
  CLI::App saved_app;
  declare(saved_app, saved);
  read_kept_options(saved_app, run["options"], app, options.out);
  saved.program = options.program;
  saved.data = options.data.empty() ? run.value("data", "") : options.data;
  saved.out = options.out;
  saved.stop_after = options.stop_after;
  saved.threads = options.threads;
  if (app.count("--device")) saved.device = options.device;
  saved.inspect = options.inspect;
  saved.resuming = true;
  options = saved;
}

std::unique_ptr<Corpus> make_corpus(const TrainGptOptions& options, const Text& text,
                                    const Tokenizer& tokenizer) {
  const BatchOptions batch{
      .rows = options.batch, .context = options.model.context, .seed = options.train.seed};
  if (options.lines) return std::make_unique<LineCorpus>(text, tokenizer, batch);
  return std::make_unique<TextCorpus>(text, tokenizer, batch);
}

void print_end(const TrainGptOptions& options, const TrainResult& result, GPT& model,
               const Tokenizer& tokenizer) {
  const bool hurried = std::isnan(result.validation_loss);  // by a signal: no more than the facts
  const std::string out = options.out;
  if (!hurried) {
    const std::string sample = generate_text(model, tokenizer, "", 400, {}, options.train.seed);
    std::printf("\nA sample:\n");
    std::fwrite(sample.data(), 1, sample.size(), stdout);
    std::printf("\n\n");
  }
  const std::string best =
      std::isfinite(result.best_loss)
          ? " (best so far: best.safetensors, step " + std::to_string(result.best_step) + ")"
          : "";
  std::printf("checkpoint   %s/model.safetensors%s\n", out.c_str(), best.c_str());
  std::printf("curves       %s/curves.svg, numbers in %s/metrics.jsonl\n", out.c_str(),
              out.c_str());
  const std::string generate = fs::path(options.program).replace_filename("generate").string();
  std::printf("more text    %s --checkpoint %s --prompt \"...\"\n", shell_word(generate).c_str(),
              shell_word(out).c_str());
  if (result.end == TrainResult::End::stopped)
    std::printf("stopped      go on with: %s\n",
                resume_command(options.program, "--resume", options.out).c_str());
  if (result.end == TrainResult::End::no_gain)
    std::printf("stopped      %lld evaluations brought no gain (--patience)\n",
                static_cast<long long>(options.train.patience));
  if (hurried) return;
  if (options.train.perfect_loss)
    std::printf(
        "entropy      %.4f nats per character: the loss of a model that knows the stories' "
        "grammar\n",
        *options.train.perfect_loss);
  std::printf("final validation loss %.4f (perplexity %.3f) after %lld steps\n",
              result.validation_loss, std::exp(result.validation_loss),
              static_cast<long long>(result.steps));
}

void check_options(const TrainGptOptions& options) {
  check(options.stop_after >= 0, "--stop-after must not be negative, got ", options.stop_after);
  check(options.out.empty() || !holds_run(options.out) || options.resuming || options.overwrite ||
            options.doctor || options.inspect.leak_test || !options.inspect.profile.empty(),
        options.out,
        " holds a run already; go on with it by --resume, replace it by --overwrite, or "
        "choose another --out");
}

TrainEvents show_on(Progress& progress, const TrainGptOptions& options, GPT& model,
                    const Tokenizer& tokenizer) {
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult& result, double speed) {
    progress.update(step, result.loss, speed);
  };
  events.on_evaluation = [&](int64_t step, double loss) {
    std::string note = "step " + std::to_string(step) + ": validation loss " + fixed(loss, 4) +
                       " (perplexity " + fixed(std::exp(loss), 3) + ")";
    if (options.train.perfect_loss)
      note += ", a perfect model has " + fixed(*options.train.perfect_loss, 4);
    const std::string sample = generate_text(model, tokenizer, "", 160, {}, options.train.seed);
    progress.note(note + "\n" + sample + "\n");
  };
  events.should_stop = [] { return interrupted != 0; };
  events.on_end = [&](TrainResult::End end) {
    release_interrupts();
    if (end == TrainResult::End::stopped)
      progress.note("saved; go on with: " +
                    resume_command(options.program, "--resume", options.out));
  };
  return events;
}

void announce(const TrainGptOptions& options, GPT& model, const Corpus& corpus, const Text& text) {
  std::fprintf(stderr,
               "%s parameters; %s training and %s validation tokens of %s; %d thread%s; "
               "files go to %s\n",
               grouped(parameter_count(model)).c_str(), grouped(corpus.training_tokens()).c_str(),
               grouped(corpus.validation_tokens()).c_str(), text.name().c_str(), num_threads(),
               num_threads() == 1 ? "" : "s", options.out.c_str());
  if (const auto* lines = dynamic_cast<const LineCorpus*>(&corpus))
    std::fprintf(stderr, "%s empty lines dropped, %s lines cut at the context\n",
                 grouped(lines->empty_lines()).c_str(), grouped(lines->cut_lines()).c_str());
}

int run(CLI::App& app, TrainGptOptions options) {
  nlohmann::json run;
  for (const char* name : {"--data", "--out"})  // an unset variable of a shell, perhaps
    check(!app.count(name) || !app.get_option(name)->as<std::string>().empty(), name,
          ": the name is empty; leave the option out for the default");
  if (app.count("--resume")) take_options_from_checkpoint(app, options, run);
  if (!options.resuming) check_updates(app, options.train);
  complete(options);
  check_options(options);
  const Device device = device_that_trains(options.dtype, options.device);
  use_threads(options.threads);

  const Text text = options.data.empty()
                        ? Text(generate_stories(1, 2'000'000), "the embedded stories")
                        : Text::from_file(options.data);
  if (options.resuming)
    check(run["text"] == text.fingerprint(), text.name(), " is not the text that the run in ",
          options.out, " trains on; name the same text with --data");
  // A resumed run has the one of its checkpoint, whatever became of the file.
  const auto tokenizer = options.resuming
                             ? Tokenizer::from_json(read_model_file(options.out).tokenizer)
                             : make_tokenizer(options.tokenizer, text.view());
  const auto corpus = make_corpus(options, text, *tokenizer);
  options.model.vocabulary = tokenizer->vocabulary_size();
  const DType dtype = find_dtype(options.dtype);
  if (!options.inspect.leak_test)  // it trains nothing; of lines, batches are as long as they are
    check_training_memory(options.model, dtype,
                          options.lines ? 0 : options.batch * options.model.context, device);
  GPT model(options.model, options.train.seed);
  if (dtype != DType::f32 || device != Device::cpu) convert(model, dtype, device);
  check_inspection(app, options, model);
  warn_of_leak(options.model.norm, model.mixes(true), model.mixes(false),
               " (--leak-test measures it)");
  if (options.doctor) return report_health(model, *corpus);
  if (options.inspect.leak_test) return report_leaks(options, model, *corpus);
  if (!options.inspect.profile.empty()) return report_profile(options, model, *corpus);

  if (!options.resuming) run = {{"options", app.config_to_str(true)}, {"text", text.fingerprint()}};
  run["data"] = options.data.empty() ? "" : fs::absolute(options.data).string();
  if (options.data.empty() && tokenizer->name() != "bpe")
    options.train.perfect_loss = stories_entropy_per_character();
  options.train.description = {to_json(options.model), tokenizer->to_json(),
                               run.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};

  Trainer trainer(model, *corpus, options.train);
  if (options.out.empty()) options.out = fresh_folder().string();  // the options are checked
  trainer.set_out(options.out);
  const FolderLock lock(options.out);
  if (options.resuming) trainer.resume();
  if (options.overwrite) remove_checkpoint(options.out);  // all that could be wrong is checked
  announce(options, model, *corpus, text);
  catch_interrupts();
  const int64_t steps = options.train.schedule.steps;
  const int64_t last = options.stop_after ? std::min(options.stop_after, steps) : steps;
  Progress progress(last, trainer.step());
  const TrainResult result =
      trainer.run(options.stop_after, show_on(progress, options, model, *tokenizer));
  progress.finish();
  print_skipped(result);
  if (!interrupted) print_inspection(options, model, *corpus);
  print_end(options, result, model, *tokenizer);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainGptOptions options;
  if (argc > 0) options.program = argv[0];
  CLI::App app("Trains a GPT on text and samples from it.");
  app.failure_message(option_failure);
  declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(app, options);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "train_gpt: out of memory beside the %zu bytes of tensors; a smaller text, "
                 "--batch, --context, --layers or --channels needs less\n",
                 memory_stats().live_bytes);
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
}
