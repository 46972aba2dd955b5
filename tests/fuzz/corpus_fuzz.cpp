// Any text as a corpus, of windows and of lines.
#include "data/corpus.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

const std::vector<std::string> seeds = {"\1one\ntwo\n\nthree\r\n", "\2\n\n", "\3no newline",
                                        "\xc3\xa9\n\xe6\x97\xa5\nend"};

static void check_batch(const Batch& batch, int64_t vocabulary) {
  int64_t tokens = 0;
  for (const int32_t id : batch.inputs.to_vector<int32_t>())
    promise(id >= 0 && id < vocabulary, "inputs lie in the vocabulary");
  for (const int32_t id : batch.targets.to_vector<int32_t>()) {
    promise(id >= -1 && id < vocabulary, "targets lie in the vocabulary or count not");
    tokens += id >= 0;
  }
  promise(tokens == batch.tokens, "tokens are counted");
}

template <class C>
static void check_corpus(const Text& text, const Tokenizer& tokenizer,
                         const BatchOptions& options) {
  only_errors([&] {
    const C corpus(text, tokenizer, options);
    check_batch(corpus.training_batch(3, 1), tokenizer.vocabulary_size());
    const int64_t batches = corpus.validation_batches();
    for (int64_t i = 0; i < batches && i < 3; ++i)
      check_batch(corpus.validation_batch(i, batches), tokenizer.vocabulary_size());
  });
}

FUZZ_TARGET(input) {
  if (input.size() < 2) return;
  const BatchOptions options{.rows = 1 + input[0] % 4 * (input[0] > 0),
                             .context = 1 + static_cast<uint8_t>(input[0]) / 16,
                             .validation_fraction = 0.25};
  const Text text(std::string(input.substr(1)), "input");
  for (const char* name : {"byte", "character"}) {
    only_errors([&] {
      const auto tokenizer = make_tokenizer(name, text.view());
      check_corpus<TextCorpus>(text, *tokenizer, options);
      check_corpus<LineCorpus>(text, *tokenizer, options);
    });
  }
}
