// Corpora of lines: padding, lengths, and what happens to lines that do not fit.
#include <algorithm>
#include <set>

#include "data/corpus.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

std::vector<int32_t> values(const Tensor& tensor) { return tensor.to_vector<int32_t>(); }

}  // namespace

TEST_CASE("lines_are_padded_with_lengths_and_ignored_targets") {
  const Text text("abc\r\n\nde\n", "names");
  const auto tokenizer = make_tokenizer("byte", {});
  const LineCorpus corpus(text, *tokenizer, {.rows = 16, .context = 8, .validation_fraction = 0});
  CHECK(corpus.training_examples() == 2);
  CHECK(corpus.empty_lines() == 1);
  CHECK(corpus.cut_lines() == 0);
  CHECK(corpus.training_tokens() == 4 + 3);
  const Batch batch = corpus.training_batch(0);
  REQUIRE(batch.inputs.shape() == Shape{16, 4});
  const auto inputs = values(batch.inputs), targets = values(batch.targets);
  const auto lengths = values(batch.lengths);
  int64_t tokens = 0;
  for (int row = 0; row < 16; ++row) {
    const std::vector<int32_t> in(inputs.begin() + row * 4, inputs.begin() + row * 4 + 4);
    const std::vector<int32_t> out(targets.begin() + row * 4, targets.begin() + row * 4 + 4);
    tokens += lengths[row];
    if (in[1] == 'a') {
      CHECK(in == std::vector<int32_t>{'\n', 'a', 'b', 'c'});
      CHECK(out == std::vector<int32_t>{'a', 'b', 'c', '\n'});
      CHECK(lengths[row] == 4);
    } else {
      CHECK(in == std::vector<int32_t>{'\n', 'd', 'e', '\n'});
      CHECK(out == std::vector<int32_t>{'d', 'e', '\n', -1});
      CHECK(lengths[row] == 3);
    }
  }
  CHECK(batch.tokens == tokens);
}

TEST_CASE("long_lines_are_cut_and_counted") {
  const Text text("abcd\nabcde\nabc\n", "names");
  const LineCorpus corpus(text, ByteTokenizer(),
                          {.rows = 16, .context = 4, .validation_fraction = 0});
  CHECK(corpus.cut_lines() == 2);
  const Batch batch = corpus.training_batch(0);
  REQUIRE(batch.inputs.shape() == Shape{16, 4});
  std::set<std::vector<int32_t>> rows;
  const auto inputs = values(batch.inputs), targets = values(batch.targets);
  for (int row = 0; row < 16; ++row) {
    CHECK(std::vector<int32_t>(inputs.begin() + row * 4, inputs.begin() + row * 4 + 4) ==
          std::vector<int32_t>{'\n', 'a', 'b', 'c'});
    rows.insert({targets.begin() + row * 4, targets.begin() + row * 4 + 4});
  }
  CHECK(rows == std::set<std::vector<int32_t>>{{'a', 'b', 'c', 'd'}, {'a', 'b', 'c', '\n'}});
}

TEST_CASE("the_split_of_lines_is_shuffled_and_the_same_for_all_seeds") {
  std::string text;
  for (char letter = 'A'; letter <= 'Z'; ++letter) text += std::string(2, letter) + "\n";
  const auto lines_of = [](const Batch& batch) {
    std::set<int32_t> letters;
    for (const int32_t id : values(batch.targets))
      if (id > '\n') letters.insert(id);
    return letters;
  };
  std::set<std::set<int32_t>> validations;
  for (const uint64_t seed : {1, 2}) {
    const LineCorpus corpus(Text(text, "names"), ByteTokenizer(),
                            {.rows = 200, .context = 8, .seed = seed});
    CHECK(corpus.training_examples() == 23);
    CHECK(corpus.validation_examples() == 3);
    const auto training = lines_of(corpus.training_batch(0));
    const auto validation = lines_of(corpus.validation_batch(0, 1));
    CHECK(training.size() == 23);
    CHECK(validation.size() == 3);
    for (const int32_t letter : validation) CHECK_FALSE(training.count(letter));
    validations.insert(validation);
  }
  CHECK(validations.size() == 1);
  CHECK(*validations.begin() != std::set<int32_t>{'X', 'Y', 'Z'});
}

TEST_CASE("too_few_lines_are_refused") {
  for (const std::string text : {"one", "one\n", "\n\n"})
    CHECK_THROWS_WITH(LineCorpus(Text(text, "names"), CharacterTokenizer(text), {}),
                      ContainsSubstring("give one example per line"));
}
