// A tokenizer from GPT-2's two files: the first line is vocab.json, the rest merges.txt.
#include "data/bpe.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

// All bytes under their names in GPT-2's files (those that are no visible character from U+0100
// on), and two merges.
static std::string small_vocabulary() {
  std::string vocabulary = "{";
  int id = 0, unseen = 0x100;
  const auto add = [&](const std::string& token) {
    vocabulary += (id ? ", \"" : "\"") + token + "\": " + std::to_string(id);
    ++id;
  };
  const auto utf8 = [](int point) {
    if (point < 0x80) return std::string(1, static_cast<char>(point));
    return std::string{static_cast<char>(0xC0 | point >> 6),
                       static_cast<char>(0x80 | (point & 63))};
  };
  for (int byte = 0; byte < 256; ++byte) {
    const bool seen = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const bool escaped = byte == '"' || byte == '\\';
    add((escaped ? "\\" : "") + utf8(seen ? byte : unseen++));
  }
  add("th");
  add("the");
  return vocabulary + "}\n#version: 0.2\nt h\nth e\n";
}

const std::vector<std::string> seeds = {small_vocabulary(), "{\"a\": 0}\na a\n", "{}\n", "[]\n\n"};

FUZZ_TARGET(input) {
  const size_t end = std::min(input.find('\n'), input.size());
  only_errors([&] {
    const auto tokenizer = BpeTokenizer::from_gpt2(input.substr(0, end),
                                                   input.substr(std::min(end + 1, input.size())));
    const std::string_view text = input.substr(end);
    const auto ids = tokenizer->encode(text);
    for (const int32_t id : ids)
      promise(id >= 0 && id < tokenizer->vocabulary_size(), "ids lie in the vocabulary");
    promise(tokenizer->decode(ids) == text, "what was encoded is decoded");
  });
}
