// The JSON of a tokenizer, and texts that it encodes.
#include "data/bpe.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

static std::string small_bpe() {
  BpeTrainer trainer;
  trainer.add("the cat and the hat");
  return trainer.train(8)->to_json();
}

const std::vector<std::string> seeds = {
    small_bpe(), CharacterTokenizer("abcé日🦊\n\"").to_json(), ByteTokenizer().to_json(),
    R"({"name":"character","characters":"\ud83e\udd8a\u0000"})", "caf\xc3\xa9 \xff"};

// Throws only where `text` is not of the tokenizer's characters.
static void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  only_errors([&] {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids)
      promise(id >= 0 && id < tokenizer.vocabulary_size(), "ids lie in the vocabulary");
    promise(tokenizer.decode(ids) == text, "what was encoded is decoded");
  });
}

FUZZ_TARGET(input) {
  only_errors([&] {
    const auto tokenizer = Tokenizer::from_json(input);
    promise(Tokenizer::from_json(tokenizer->to_json())->to_json() == tokenizer->to_json(),
            "a tokenizer survives its JSON");
    check_round_trip(*tokenizer, input);
  });
  check_round_trip(ByteTokenizer(), input);
  only_errors([&] { check_round_trip(CharacterTokenizer(input), input); });
}
