// Continues a prompt with a trained model. The checkpoint is all that it needs.
//
//   generate --checkpoint runs/1 --prompt "Once upon a time" --temperature 0.8
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <random>

#include "core/device.h"
#include "core/threads.h"
#include "train/generation.h"
#include "train/language_model.h"
#include "train/number_option.h"
#include "train/option_failure.h"

using namespace tapeformer;

int main(int argc, char** argv) {
  std::string checkpoint, prompt, device = "cpu";
  int64_t tokens = 400;
  int threads = 0;
  SamplingOptions sampling;
  std::optional<uint64_t> seed;
  CLI::App app("Continues a prompt with a trained model.");
  app.failure_message(option_failure);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--checkpoint", checkpoint, "Folder of a run, or its model.safetensors")
      ->required();
  app.add_option("--prompt", prompt, "Text to continue");
  app.add_option("--tokens", tokens, "How many tokens to add")
      ->check(number_objection<int64_t>)
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature,
                 "Below 1 safer, above 1 bolder; 0: always the most probable token")
      ->check(number_objection<double>)
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Draw from the k most probable tokens; 0: all")
      ->check(number_objection<int64_t>)
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p,
                 "Draw from the fewest tokens that have this probability together")
      ->check(number_objection<double>)
      ->capture_default_str();
  app.add_option("--seed", seed, "Equal seeds give equal text; without one every call differs")
      ->check(number_objection<uint64_t>);
  app.add_option("--device", device, "cpu, cuda or cuda:<index>")->capture_default_str();
  app.add_option("--threads", threads, "CPU threads; 0: all that this process may use")
      ->check(number_objection<int>);
  CLI11_PARSE(app, argc, argv);
  try {
    if (threads != 0) set_num_threads(threads);
    const LanguageModel language = load_language_model(checkpoint, find_device(device));
    std::fputs(prompt.c_str(), stdout);
    generate_text(*language.model, *language.tokenizer, prompt, tokens, sampling,
                  seed ? *seed : std::random_device{}(), [](const std::string& piece) {
                    std::fwrite(piece.data(), 1, piece.size(), stdout);
                    std::fflush(stdout);
                  });
    std::fputc('\n', stdout);
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "the output cannot be written");
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr, "generate: out of memory; a smaller checkpoint or a shorter --prompt needs less\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
