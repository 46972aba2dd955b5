// Byte-pair encoding: learning it, encoding and decoding, its files, and its words.
#include "data/bpe.h"

#include <thread>

#include "core/random.h"
#include "data/corpus.h"
#include "data/lines.h"
#include "data/pretokens.h"
#include "data/stories.h"
#include "data/unicode.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "tests/vectors/vectors.h"

using namespace tapeformer;

namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for_pretokens(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

std::shared_ptr<const BpeTokenizer> learnt(const std::vector<std::string>& texts, int64_t merges) {
  BpeTrainer trainer;
  for (const std::string& text : texts) trainer.add(text);
  return trainer.train(merges);
}

std::vector<std::string> all_bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

std::string random_bytes(uint32_t seed, int count) {
  Generator random({seed, Purpose::sampling, 0, 0});
  const std::string often = "aab the \n\t'\xC3\xA9\xF0\x9F\xA6\x8A";
  std::string text;
  for (int i = 0; i < count; ++i)
    text += random.below(3) ? often[random.below(static_cast<uint32_t>(often.size()))]
                            : static_cast<char>(random.below(256));
  return text;
}

}  // namespace

TEST_CASE("gpt2_files_give_the_ids_of_the_reference") {
  const auto tokenizer = BpeTokenizer::from_gpt2(vectors::read_file("bpe_vocab.json"),
                                                 vectors::read_file("bpe_merges.txt"));
  const auto again = Tokenizer::from_json(tokenizer->to_json());
  const nlohmann::json cases = vectors::read_json("bpe_ids.json");
  REQUIRE(cases.size() > 40);
  for (const auto& held : cases) {
    const std::string text = held.at("text");
    CAPTURE(text);
    const auto ids = held.at("ids").get<std::vector<int32_t>>();
    CHECK(tokenizer->encode(text) == ids);
    CHECK(again->encode(text) == ids);
    CHECK(tokenizer->decode(ids) == text);
  }
  CHECK(tokenizer->decode(0) == "<|endoftext|>");
}

TEST_CASE("words_are_cut_as_gpt2_cuts_them") {
  using Words = std::vector<std::string>;
  CHECK(words_of("Hello  world's 12!?\n\n x") ==
        Words{"Hello", " ", " world", "'s", " 12", "!?", "\n\n", " x"});
  CHECK(words_of("a \n") == Words{"a", " \n"});
  CHECK(words_of("\xFF\xFE x\xE2\x82") == Words{"\xFF\xFE", " x", "\xE2\x82"});
}

TEST_CASE("the_first_merges_are_the_most_frequent_pairs") {
  // Words and counts: " low" 5, " lower" 2, " newest" 6, " widest" 3. Pairs: e-s, s-t 9, w-e 8 ...
  std::vector<std::string> texts(5, " low");
  texts.insert(texts.end(), {" lower", " lower"});
  for (int i = 0; i < 6; ++i) texts.push_back(" newest");
  for (int i = 0; i < 3; ++i) texts.push_back(" widest");
  const auto tokenizer = learnt(texts, 4);
  REQUIRE(tokenizer->vocabulary_size() == 260);
  CHECK(tokenizer->decode(256) == "es");   // 9, as s-t, whose first id is higher
  CHECK(tokenizer->decode(257) == "est");  // 9
  CHECK(tokenizer->decode(258) == " l");   // 7, as l-o and o-w
  CHECK(tokenizer->decode(259) == "ow");   // 7, as " l" before o, whose first id is higher
}

TEST_CASE("learning_equals_counting_anew_before_every_merge") {
  std::vector<std::string> words;
  for_pretokens(generate_stories(3, 6000),
                [&](std::string_view word) { words.emplace_back(word); });
  words.insert(words.end(), {"aaaaaaa", "aaaaaaa", "abababab", "abababab", "bcbcbc", "abcabc"});
  const auto tokenizer = learnt(words, 150);
  // The plain algorithm: count all pairs, join the best everywhere.
  std::vector<std::string> tokens = all_bytes();
  std::vector<std::vector<int32_t>> split;
  for (const std::string& word : words) {
    auto& ids = split.emplace_back();
    for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
  }
  for (const BpeMerge& merge : tokenizer->merges()) {
    std::map<std::pair<int32_t, int32_t>, int> counts;
    for (const auto& ids : split)
      for (size_t i = 0; i + 1 < ids.size(); ++i) ++counts[{ids[i], ids[i + 1]}];
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it)
      if (it->second > best->second) best = it;
    REQUIRE(std::pair(merge.left, merge.right) == best->first);
    for (auto& ids : split) {
      std::vector<int32_t> joined;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && ids[i] == merge.left && ids[i + 1] == merge.right;
        joined.push_back(here ? merge.result : ids[i]);
        i += here;
      }
      ids = joined;
    }
  }
  CHECK(tokenizer->merges().size() == 150);
  for (size_t i = 0; i < words.size(); ++i) REQUIRE(tokenizer->encode(words[i]) == split[i]);
}

TEST_CASE("merges_in_any_order_act_as_gpt2s_loop_does") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Generator random({seed, Purpose::sampling, 1, 0});
    std::vector<std::string> tokens = all_bytes();
    std::vector<BpeMerge> merges;
    std::vector<int32_t> letters{'a', 'b', 'c'};
    while (letters.size() < 15) {
      const auto draw = [&] { return letters[random.below(uint32_t(letters.size()))]; };
      const int32_t left = draw(), right = draw();
      const std::string joined = tokens[left] + tokens[right];
      const auto known = std::find(tokens.begin(), tokens.end(), joined);
      const auto id = static_cast<int32_t>(known - tokens.begin());
      if (known == tokens.end()) tokens.push_back(joined), letters.push_back(id);
      merges.insert(merges.begin() + random.below(uint32_t(merges.size() + 1)), {left, right, id});
    }
    std::string word;
    for (int i = 0; i < 60; ++i) word += static_cast<char>('a' + random.below(3));
    // The plain loop: the pair of lowest rank, everywhere from left to right, until none merges.
    std::vector<int32_t> ids(word.begin(), word.end());
    for (bool merged = true; merged;) {
      merged = false;
      for (const BpeMerge& merge : merges) {
        std::vector<int32_t> next;
        for (size_t i = 0; i < ids.size(); ++i) {
          const bool here = i + 1 < ids.size() && ids[i] == merge.left && ids[i + 1] == merge.right;
          next.push_back(here ? merge.result : ids[i]);
          i += here;
        }
        merged = next.size() < ids.size();
        ids = next;
        if (merged) break;
      }
    }
    CAPTURE(seed, word);
    CHECK(BpeTokenizer(tokens, merges).encode(word) == ids);
  }
}

TEST_CASE("learning_ends_where_no_pair_occurs_twice") {
  const auto tokenizer = learnt({"ab", "ab", "cd"}, 1000);
  CHECK(tokenizer->vocabulary_size() == 257);
  CHECK_THROWS_WITH(BpeTrainer().train(5), ContainsSubstring("no text to learn from"));
}

TEST_CASE("what_was_encoded_is_decoded_whatever_its_bytes") {
  const auto tokenizer = learnt({generate_stories(1, 20'000), random_bytes(1, 5000)}, 500);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const std::string text = random_bytes(seed, static_cast<int>(seed));
    REQUIRE(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  CHECK(tokenizer->decode(tokenizer->encode(every)) == every);
}

TEST_CASE("a_word_of_a_million_letters_is_encoded_in_a_moment") {
  const auto tokenizer = learnt({std::string(64, 'a'), std::string(64, 'a')}, 20);
  const std::string text(1'000'000, 'a');
  const auto ids = tokenizer->encode(text);
  CHECK(ids.size() < 40'000);
  CHECK(tokenizer->decode(ids) == text);
}

TEST_CASE("threads_that_share_a_tokenizer_get_the_same_ids") {
  const std::string text = generate_stories(2, 30'000);
  const auto tokenizer = learnt({text}, 300);
  const auto expected = learnt({text}, 300)->encode(text);
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& result : ids) threads.emplace_back([&] { result = tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : ids) CHECK(result == expected);
}

TEST_CASE("lines_of_a_bpe_corpus_end_at_their_newlines") {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "one two\n\n\n\nthree\n";
  const auto tokenizer = learnt({text}, 40);
  REQUIRE(tokenizer->encode("\n\n\n\nthree")[0] > 255);  // several newlines are one token
  const LineCorpus corpus(Text(text, "text"), *tokenizer, {.rows = 2, .context = 8});
  CHECK(corpus.training_examples() + corpus.validation_examples() == 60);
  CHECK(corpus.empty_lines() == 90);
}

TEST_CASE("bpe_files_that_do_not_fit_are_errors") {
  const auto vocabulary = [](const std::string& change) {
    nlohmann::json json = nlohmann::json::parse(vectors::read_file("bpe_vocab.json"));
    json.merge_patch(nlohmann::json::parse(change));
    return json.dump();
  };
  const std::string merges = vectors::read_file("bpe_merges.txt");
  const auto objection = [&](const std::string& vocab, const std::string& with) -> std::string {
    try {
      BpeTokenizer::from_gpt2(vocab, with);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(objection(vocabulary("{}"), merges) == "");
  CHECK(objection(vocabulary("{}"), "") == "");
  CHECK_THAT(objection("[1,2]", merges), ContainsSubstring("JSON object"));
  CHECK_THAT(objection("{", merges), ContainsSubstring("JSON object"));
  CHECK_THAT(objection(vocabulary(R"({"a":-1})"), merges), ContainsSubstring("has the id -1"));
  CHECK_THAT(objection(vocabulary(R"({"a":"x"})"), merges), ContainsSubstring("has the id \"x\""));
  CHECK_THAT(objection(vocabulary(R"({"a":1})"), merges), ContainsSubstring("two tokens have"));
  CHECK_THAT(objection(vocabulary(R"({"a":4294967296})"), merges), ContainsSubstring("has the id"));
  CHECK_THAT(objection(vocabulary("{}"), "#version: 0.2\na b c\n"),
             ContainsSubstring("merge 0, 'a b c', is not two tokens"));
  CHECK_THAT(objection(vocabulary("{}"), "t\n"), ContainsSubstring("is not two tokens"));
  CHECK_THAT(objection(vocabulary("{}"), "q q\n"), ContainsSubstring("do the two belong together"));
  std::string without_a = vocabulary("{}");
  without_a.replace(without_a.find("\"a\":"), 3, "\"aqq\"");
  CHECK_THAT(objection(without_a, ""), ContainsSubstring("no token for byte 97"));

  const auto json_objection = [](const std::string& json) -> std::string {
    try {
      Tokenizer::from_json(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(json_objection(R"({"name":"bpe"})"), ContainsSubstring("needs an array 'vocabulary'"));
  CHECK_THAT(json_objection(R"({"name":"bpe","vocabulary":[1]})"), ContainsSubstring("no string"));
  CHECK_THAT(json_objection(R"({"name":"bpe","vocabulary":["a","a"],"merges":[]})"),
             ContainsSubstring("'a' stands twice"));
  CHECK_THAT(json_objection(R"({"name":"/etc/passwd"})"), ContainsSubstring("no tokenizer is"));
}

TEST_CASE("a_tokenizer_is_loaded_from_its_file_or_gpt2s_folder") {
  const TemporaryFolder folder;
  const auto tokenizer = learnt({generate_stories(1, 5000)}, 100);
  write_bytes(folder / "bpe.json", tokenizer->to_json());
  CHECK(load_tokenizer((folder / "bpe.json").string())->to_json() == tokenizer->to_json());
  write_bytes(folder / "vocab.json", vectors::read_file("bpe_vocab.json"));
  CHECK_THROWS_WITH(load_tokenizer(folder.path.string()), ContainsSubstring("merges.txt"));
  write_bytes(folder / "merges.txt", vectors::read_file("bpe_merges.txt"));
  CHECK(load_tokenizer(folder.path.string())->vocabulary_size() == 460);
  CHECK(make_tokenizer((folder / "vocab.json").string(), "")->name() == "bpe");
  write_bytes(folder / "bad.json", "{}");
  CHECK_THROWS_WITH(load_tokenizer((folder / "bad.json").string()), ContainsSubstring("bad.json:"));
}

TEST_CASE("lower_case_is_that_of_unicode") {
  CHECK(lower_case("Straße ÄÖÜ ÉCOLE ЁЖ Ωμέγα") == "straße äöü école ёж ωμέγα");
  CHECK(lower_case("ΟΔΟΣ ΣΑΣ, Σ") == "οδος σας, σ");  // a sigma that ends a word is a final one
  CHECK(lower_case("ΑΣⅧ ΑΣ2") == "ασⅷ ας2");          // which a Roman numeral does not end
  CHECK(lower_case("İI") == "i̇i");
  CHECK(lower_case("A\xFF"
                   "B") ==
        "a\xFF"
        "b");
}
