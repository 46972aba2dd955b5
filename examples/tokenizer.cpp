// Learns a byte-pair encoding from texts, and shows what it makes of others.
//
//   tokenizer train --data FILE [FILE ...] --merges 8000 --out bpe.json
//   tokenizer encode --tokenizer bpe.json < text > ids
//   tokenizer decode --tokenizer bpe.json < ids > text
//
// --tokenizer also takes GPT-2's vocab.json, with the merges.txt beside it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "core/check.h"
#include "data/bpe.h"
#include "data/lines.h"
#include "train/files.h"
#include "train/format.h"
#include "train/number_option.h"
#include "train/option_failure.h"

using namespace tapeformer;

namespace {

struct Options {
  std::vector<std::string> data;
  std::string out = "bpe.json", tokenizer;
  int64_t merges = 8000;
};

void train(const Options& options) {
  BpeTrainer trainer;
  int64_t lines = 0;
  for (const std::string& path : options.data)
    for_lines(path, [&](std::string_view line) {
      // A sentence's first word is the same word as inside it.
      trainer.add(" " + std::string(line));
      ++lines;
    });
  const auto tokenizer = trainer.train(options.merges);
  write_file_atomically(options.out, tokenizer->to_json());
  std::printf("%s: %s tokens from %s lines\n", options.out.c_str(),
              grouped(tokenizer->vocabulary_size()).c_str(), grouped(lines).c_str());
}

// Line by line, the ids of each on a line of its own.
void encode(const Options& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer);
  for (std::string line; std::getline(std::cin, line);) {
    std::string ids;
    for (const int32_t id : tokenizer->encode(line))
      ids += (ids.empty() ? "" : " ") + std::to_string(id);
    std::puts(ids.c_str());
  }
}

void decode(const Options& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer);
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    std::istringstream words(line);
    std::string text;
    for (std::string word; words >> word;) {
      check(number_objection<int32_t>(word).empty(), "line ", number, ": '", word, "' is no id");
      text += tokenizer->decode(static_cast<int32_t>(std::stol(word)));
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Byte-pair encodings: learns one from texts, encodes, decodes.");
  app.failure_message(option_failure);
  app.require_subcommand(1);
  CLI::App* const train_command = app.add_subcommand("train", "Learn merges from text files");
  train_command->add_option("--data", options.data, "Text files, plain or gzip")->required();
  train_command->add_option("--merges", options.merges, "Merges to learn, beside the 256 bytes")
      ->check(number_objection<int64_t>)
      ->capture_default_str();
  train_command->add_option("--out", options.out, "File to write")->capture_default_str();
  CLI::App* const encode_command = app.add_subcommand("encode", "Lines to lines of ids");
  CLI::App* const decode_command = app.add_subcommand("decode", "Lines of ids to lines");
  for (CLI::App* const command : {encode_command, decode_command})
    command->add_option("--tokenizer", options.tokenizer, "What train wrote, or vocab.json")
        ->required();
  CLI11_PARSE(app, argc, argv);
  try {
    if (*train_command) train(options);
    if (*encode_command) encode(options);
    if (*decode_command) decode(options);
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "the output cannot be written");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer: %s\n", error.what());
    return 1;
  }
}
