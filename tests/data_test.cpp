// Tokenizers, texts and the batches of corpora.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/corpus.h"
#include "data/utf8.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace tapeformer;

namespace {

/// The message of the error that `f` throws.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<int32_t> values(const Tensor& tensor) { return tensor.to_vector<int32_t>(); }

/// n bytes that count, so that a token tells its position: byte i is i mod 251.
Text counting_text(int64_t n) {
  std::string text;
  for (int64_t i = 0; i < n; ++i) text += static_cast<char>(i % 251);
  return Text(text, "counting");
}

TextCorpus counting_corpus(int64_t n, const BatchOptions& options) {
  return TextCorpus(counting_text(n), ByteTokenizer(), options);
}

const std::string zoo = "Zoë saw 3 écureuils, ein Ä, 日本 and 🦊.\n";

}  // namespace

TEST_CASE("tokenizers_read_back_what_they_wrote") {
  for (const char* name : {"byte", "character"}) {
    const auto tokenizer = make_tokenizer(name, zoo);
    const auto ids = tokenizer->encode(zoo);
    CHECK(tokenizer->name() == name);
    CHECK(tokenizer->decode(ids) == zoo);
    CHECK(*std::max_element(ids.begin(), ids.end()) < tokenizer->vocabulary_size());
    const auto again = Tokenizer::from_json(tokenizer->to_json());
    CHECK(again->name() == name);
    CHECK(again->encode(zoo) == ids);
    CHECK(again->vocabulary_size() == tokenizer->vocabulary_size());
  }
}

TEST_CASE("character_ids_are_the_ranks_of_the_code_points") {
  const CharacterTokenizer tokenizer("b🦊aéb\n");
  CHECK(tokenizer.vocabulary_size() == 5);
  CHECK(tokenizer.encode("\nabé🦊") == std::vector<int32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("byte_tokenizer_takes_every_byte") {
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  std::vector<int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  CHECK(ByteTokenizer().encode(all) == ids);
  CHECK(ByteTokenizer().decode(ids) == all);
}

TEST_CASE("encoding_a_long_text_in_pieces_loses_nothing") {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "aé";
  const CharacterTokenizer tokenizer(text);
  int64_t pieces = 0, ids = 0;
  tokenizer.encode(text, [&](std::span<const int32_t> piece) {
    ++pieces;
    ids += static_cast<int64_t>(piece.size());
  });
  CHECK(ids == 20000);
  CHECK(pieces > 1);
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
}

TEST_CASE("unknown_character_is_named_with_its_place_and_the_cure") {
  const CharacterTokenizer tokenizer("abcé");
  CHECK(
      error_of([&] { tokenizer.encode("abéÖ"); }) ==
      "tokenizer: unknown character 'Ö' (U+00D6), character 4 of the text; use only characters of "
      "the training text, or train with the tokenizer byte (train_gpt --tokenizer byte)");
  CHECK_THAT(error_of([&] { tokenizer.encode("a\n"); }),
             ContainsSubstring("unknown character U+000A, character 2"));
  CHECK_THAT(error_of([&] { tokenizer.encode("🦊"); }),
             ContainsSubstring("'🦊' (U+1F98A), character 1"));
}

TEST_CASE("invalid_utf8_is_refused_at_its_byte") {
  CHECK(
      error_of([] { CharacterTokenizer("abc\xFF"); }) ==
      "tokenizer: the text is not valid UTF-8 at byte 3 (0xFF); convert it, or take the tokenizer "
      "byte (train_gpt --tokenizer byte), which reads any file");
  const std::vector<std::string> texts = {"é\x80",        "\xC0\x80",         "\xE0\x80\x80",
                                          "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                          "x\xE2\x82"};
  for (const std::string& text : texts)
    CHECK_THAT(error_of([&] { CharacterTokenizer{text}; }), ContainsSubstring("not valid UTF-8"));
}

TEST_CASE("tokenizer_errors_list_what_is_known") {
  CHECK(
      error_of([] { make_tokenizer("bpe", "x"); }) ==
      "tokenizer: no tokenizer is called 'bpe'; known are byte and character, and there is no file "
      "of this name");
  CHECK_THAT(error_of([] { ByteTokenizer().decode(256); }),
             ContainsSubstring("id 256 is outside the vocabulary of 256"));
  CHECK_THAT(error_of([] { CharacterTokenizer("ab").decode(-1); }), ContainsSubstring("id -1"));
  CHECK_THAT(error_of([] { Tokenizer::from_json("nonsense"); }), ContainsSubstring("JSON"));
  CHECK_THAT(error_of([] { Tokenizer::from_json(R"({"name":"character"})"); }),
             ContainsSubstring("characters"));
}

TEST_CASE("every_code_point_survives_utf8") {
  for (char32_t value = 0; value < 0x110000; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;  // surrogates are no characters
    const std::string text = to_utf8(value);
    const CodePoint point = code_point_at(text, 0);
    if (point.value != value || point.bytes != text.size() ||
        point.status != CodePoint::Status::valid)
      FAIL("U+" << std::hex << static_cast<uint32_t>(value));
  }
}

TEST_CASE("utf8_stream_holds_back_incomplete_characters") {
  Utf8Stream stream;
  std::string streamed;
  for (const char byte : zoo) {
    const std::string ready = stream.push(std::string_view(&byte, 1));
    for (size_t at = 0; at < ready.size(); at += code_point_at(ready, at).bytes)
      CHECK(code_point_at(ready, at).status == CodePoint::Status::valid);
    streamed += ready;
  }
  CHECK(streamed == zoo);
  CHECK(stream.finish() == "");
}

TEST_CASE("utf8_stream_replaces_what_is_no_character") {
  Utf8Stream stream;
  CHECK(stream.push("a\xFFz") == "a\uFFFDz");
  CHECK(stream.push("\xE6\x97") == "");
  CHECK(stream.push("x") == "\uFFFD\uFFFDx");
  CHECK(stream.push("\xF0\x9F") == "");
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish() == "");
}

TEST_CASE("text_reads_a_file") {
  const TemporaryFolder folder;
  const std::string content("with\0nul", 8);
  write_bytes(folder / "text.txt", content);
  const Text text = Text::from_file((folder / "text.txt").string());
  CHECK(text.view() == content);
  CHECK(text.fingerprint() == Text(content, "other").fingerprint());
  write_bytes(folder / "marked.txt", "\xEF\xBB\xBF" + content + "\xEF\xBB\xBF");
  CHECK(Text::from_file((folder / "marked.txt").string()).view() == content + "\xEF\xBB\xBF");
}

TEST_CASE("fingerprint_notices_another_text") {
  std::string text = "It was the best of times.";
  std::set<std::string> fingerprints{Text(text, "").fingerprint()};
  for (char& letter : text) {
    ++letter;
    fingerprints.insert(Text(text, "").fingerprint());
    --letter;
  }
  fingerprints.insert(Text(text + '\0', "").fingerprint());
  CHECK(fingerprints.size() == text.size() + 2);
}

TEST_CASE("text_errors_name_the_file_and_the_cure") {
  const TemporaryFolder folder;
  const std::string missing = (folder / "missing.txt").string();
  CHECK_THAT(error_of([&] { Text::from_file(missing); }),
             ContainsSubstring("cannot open '" + missing + "': No such file") &&
                 ContainsSubstring("path"));
  CHECK_THAT(error_of([&] { Text::from_file(folder.path.string()); }),
             ContainsSubstring("is a directory; give the path of a text file"));
  write_bytes(folder / "empty.txt", "");
  CHECK_THAT(error_of([&] { Text::from_file((folder / "empty.txt").string()); }),
             ContainsSubstring("empty.txt' is empty"));
  write_bytes(folder / "text.txt.gz", "\x1F\x8B\x08 and so on");
  CHECK_THAT(error_of([&] { Text::from_file((folder / "text.txt.gz").string()); }),
             ContainsSubstring("text.txt.gz' is compressed with gzip; decompress it first"));
  CHECK_THAT(error_of([] { Text("", "nothing"); }), ContainsSubstring("'nothing' is empty"));
}

TEST_CASE("corpus_shorter_than_the_context_names_both_numbers_and_the_cure") {
  CHECK(error_of([] { counting_corpus(40, {.context = 64}); }) ==
        "corpus: 'counting' has 40 tokens, 36 of them for training, but one example takes 65 (a "
        "context of 64, and one token to predict); lower context or give more text");
  CHECK_THAT(error_of([] { counting_corpus(100, {.context = 64}); }),
             ContainsSubstring("100 tokens, 10 of them for validation, but one example takes 65"));
  CHECK_NOTHROW(counting_corpus(65, {.context = 64, .validation_fraction = 0}));
  CHECK_NOTHROW(counting_corpus(650, {.context = 64}));
}

TEST_CASE("corpus_refuses_nonsense_options") {
  CHECK_THAT(error_of([] { counting_corpus(99, {.rows = 0}); }), ContainsSubstring("row, got 0"));
  CHECK_THAT(error_of([] { counting_corpus(99, {.context = 0}); }), ContainsSubstring("got 0"));
  for (const double fraction : {-0.1, 1.0, std::nan("")})
    CHECK_THAT(
        error_of([&] { counting_corpus(99, {.context = 2, .validation_fraction = fraction}); }),
        ContainsSubstring("validation fraction must be in [0, 1)"));
}

TEST_CASE("split_is_the_floor_of_nine_tenths") {
  // 1115394 is the size of a well-known text, whose split is int(0.9 * n) = 1003854.
  for (const auto& [n, training] : {std::pair{1115394, 1003854}, {100, 90}, {99, 89}, {101, 90}}) {
    const TextCorpus corpus = counting_corpus(n, {.context = 8});
    CHECK(corpus.training_tokens() == training);
    CHECK(corpus.validation_tokens() == n - training);
  }
}

TEST_CASE("windows_stay_in_the_training_part_and_reach_its_ends") {
  const TextCorpus corpus = counting_corpus(200, {.rows = 8, .context = 16});
  std::set<int32_t> starts;
  for (int64_t step = 0; step < 500; ++step) {
    const Batch batch = corpus.training_batch(step);
    CHECK(batch.inputs.shape() == Shape{8, 16});
    CHECK(batch.targets.shape() == Shape{8, 16});
    CHECK_FALSE(batch.lengths.defined());
    CHECK(batch.tokens == 8 * 16);
    const auto inputs = values(batch.inputs), targets = values(batch.targets);
    for (int row = 0; row < 8; ++row) {
      const int32_t start = inputs[row * 16];
      starts.insert(start);
      for (int t = 0; t < 16; ++t)
        if (inputs[row * 16 + t] != start + t || targets[row * 16 + t] != start + t + 1)
          FAIL("window " << start << " is not a piece of the text");
    }
  }
  // 180 training tokens hold 164 windows of 17; 4000 draws miss one with probability 4e-9.
  CHECK(starts.size() == 164);
  CHECK(*starts.begin() == 0);
  CHECK(*starts.rbegin() == 163);
}

TEST_CASE("windows_are_drawn_uniformly") {
  const TextCorpus corpus =
      counting_corpus(90, {.rows = 10, .context = 80, .validation_fraction = 0});  // 10 windows
  std::vector<double> counts(10);
  for (int64_t step = 0; step < 1000; ++step) {
    const auto inputs = values(corpus.training_batch(step).inputs);
    for (int row = 0; row < 10; ++row) ++counts[inputs[row * 80]];
  }
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 1000) * (count - 1000) / 1000;
  CHECK(chi_square < 27.9);  // 9 degrees of freedom, p = 0.001
}

TEST_CASE("a_batch_depends_on_seed_and_step_alone") {
  const TextCorpus corpus = counting_corpus(5000, {.rows = 3, .context = 8, .seed = 7});
  std::map<int64_t, std::vector<int32_t>> forward;
  for (int64_t step = 0; step < 20; ++step)
    forward[step] = values(corpus.training_batch(step).inputs);
  const TextCorpus again = counting_corpus(5000, {.rows = 3, .context = 8, .seed = 7});
  const TextCorpus other = counting_corpus(5000, {.rows = 3, .context = 8, .seed = 8});
  std::set<std::vector<int32_t>> different;
  for (int64_t step = 19; step >= 0; --step) {
    again.validation_batch(0, 1);
    CHECK(values(again.training_batch(step).inputs) == forward[step]);
    CHECK(values(other.training_batch(step).inputs) != forward[step]);
    different.insert(forward[step]);
  }
  CHECK(different.size() == 20);
  CHECK(values(corpus.training_batch(int64_t{1} << 32).inputs) != forward[0]);
}

TEST_CASE("micro_batches_are_the_parts_of_one_larger_batch") {
  const TextCorpus small = counting_corpus(5000, {.rows = 3, .context = 8, .seed = 7});
  const TextCorpus large = counting_corpus(5000, {.rows = 12, .context = 8, .seed = 7});
  std::vector<int32_t> parts;
  for (int64_t micro_batch = 0; micro_batch < 4; ++micro_batch)
    for (const int32_t id : values(small.training_batch(5, micro_batch).inputs))
      parts.push_back(id);
  CHECK(parts == values(large.training_batch(5).inputs));
}

TEST_CASE("a_full_validation_pass_asks_for_every_target_once") {
  // 100 validation tokens: 12 windows of 8 targets, 4 batches of 3 rows; with 5 rows, 5 + 5 + 2.
  for (const int64_t rows : {3, 5}) {
    const TextCorpus corpus = counting_corpus(1000, {.rows = rows, .context = 8});
    const int64_t batches = corpus.validation_batches();
    CHECK(corpus.validation_examples() == 12);
    CHECK(batches == (rows == 3 ? 4 : 3));
    std::vector<int32_t> targets;
    int64_t tokens = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const Batch batch = corpus.validation_batch(i, batches);
      tokens += batch.tokens;
      const auto inputs = values(batch.inputs), more = values(batch.targets);
      for (size_t j = 0; j < more.size(); ++j) CHECK(more[j] == (inputs[j] + 1) % 251);
      targets.insert(targets.end(), more.begin(), more.end());
    }
    std::vector<int32_t> expected;
    for (int64_t position = 901; position < 901 + 96; ++position)
      expected.push_back(static_cast<int32_t>(position % 251));
    CHECK(targets == expected);
    CHECK(tokens == 96);
  }
}

TEST_CASE("a_short_validation_pass_spreads_its_windows_evenly") {
  const TextCorpus corpus = counting_corpus(1000, {.rows = 2, .context = 8});  // 12 windows
  CHECK(corpus.validation_batches(2) == 2);
  CHECK(corpus.validation_batches(100) == 6);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < 2; ++i) {
    const auto inputs = values(corpus.validation_batch(i, 2).inputs);
    for (int row = 0; row < 2; ++row)
      windows.push_back(((inputs[row * 8] - 900 % 251 + 251) % 251) / 8);
  }
  CHECK(windows == std::vector<int64_t>{0, 3, 6, 9});
  CHECK_THAT(error_of([&] { corpus.validation_batch(2, 2); }),
             ContainsSubstring("no batch 2 of 2; a full pass has 6"));
  CHECK_THAT(error_of([&] { corpus.validation_batch(0, 7); }),
             ContainsSubstring("full pass has 6"));
}

TEST_CASE("a_corpus_without_validation_part_has_no_validation_batches") {
  const TextCorpus corpus = counting_corpus(100, {.context = 8, .validation_fraction = 0});
  CHECK(corpus.training_tokens() == 100);
  CHECK(corpus.validation_batches() == 0);
}

TEST_CASE("large_vocabularies_keep_their_ids") {
  std::string text;
  for (char32_t value = 0x4E00; value < 0x4E00 + 300; ++value) text += to_utf8(value);
  const auto tokenizer = make_tokenizer("character", text);
  const TextCorpus corpus(Text(text, "han"), *tokenizer,
                          {.rows = 1, .context = 299, .validation_fraction = 0});
  std::vector<int32_t> expected(299);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(values(corpus.training_batch(0).inputs) == expected);
}
