// Parallel text: reading two files, dropping pairs, batches by length, padding.
#include "data/parallel.h"

#include <sys/stat.h>
#include <zlib.h>

#include <chrono>
#include <map>
#include <semaphore>
#include <set>
#include <thread>

#include "data/bpe.h"
#include "data/languages.h"
#include "data/lines.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace tapeformer;

namespace {

SentenceCoder bytes(bool lowercase = false) {
  return SentenceCoder(std::make_shared<ByteTokenizer>(), lowercase);
}

std::string pairs_objection(const std::string& source, const std::string& target) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", source);
  write_bytes(folder / "b", target);
  try {
    read_pairs((folder / "a").string(), (folder / "b").string());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void write_gzip(const std::filesystem::path& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

PairCorpus languages(int64_t count, const PairOptions& options) {
  return PairCorpus(generate_pairs(1, count), bytes(), bytes(), options);
}

std::vector<int32_t> row_of(const Tensor& x, int64_t row) {
  const int32_t* const begin = x.data<int32_t>() + row * x.dim(1);
  return {begin, begin + x.dim(1)};
}

}  // namespace

TEST_CASE("lines_are_read_plain_or_gzipped_with_either_line_end") {
  const TemporaryFolder folder;
  const std::vector<std::string> lines{"one", "", "drei ä", "last"};
  const std::string text = "one\r\n\ndrei ä\nlast";
  write_bytes(folder / "plain", text);
  write_bytes(folder / "marked", "\xEF\xBB\xBF" + text + "\n");
  write_gzip(folder / "packed.gz", text);
  for (const char* name : {"plain", "marked", "packed.gz"})
    CHECK(read_lines((folder / name).string()) == lines);
  write_bytes(folder / "empty", "");
  CHECK(read_lines((folder / "empty").string()).empty());
  const std::string longest(200'000, 'x');  // longer than what is read at once
  write_bytes(folder / "long", longest + "\n" + longest);
  CHECK(read_lines((folder / "long").string()) == std::vector<std::string>{longest, longest});
}

TEST_CASE("gzip_files_may_have_several_members_and_bytes_behind_them_as_for_gzip_itself") {
  const TemporaryFolder folder;
  std::string longest;  // more than is read at once, also compressed
  for (const SentencePair& pair : generate_pairs(1, 20'000)) longest += pair.source;
  write_gzip(folder / "1.gz", "one\ntw");
  write_gzip(folder / "2.gz", "o\n" + longest);
  const std::string both = content(folder / "1.gz") + content(folder / "2.gz");
  REQUIRE(both.size() > 100'000);
  const std::vector<std::string> lines{"one", "two", longest};
  for (const std::string& behind : {std::string(), std::string("\0\0", 2), std::string("\x1F")}) {
    write_bytes(folder / "both.gz", both + behind);
    CHECK(read_lines((folder / "both.gz").string()) == lines);
  }
  const size_t second = content(folder / "2.gz").size();
  // Into the second member's sums, into its text, and into its header.
  for (const size_t cut : {size_t{1}, size_t{9}, size_t{15}, second - 5, second - 2}) {
    write_bytes(folder / "cut.gz", both.substr(0, both.size() - cut));
    CHECK_THROWS_WITH(read_lines((folder / "cut.gz").string()), ContainsSubstring("cut off"));
  }
  std::string damaged = both;
  damaged[damaged.size() - 6] ^= 1;  // in the sum
  write_bytes(folder / "damaged.gz", damaged);
  CHECK_THROWS_WITH(read_lines((folder / "damaged.gz").string()), ContainsSubstring("check"));
}

TEST_CASE("blocks_of_lines_are_full_or_end_where_the_input_pauses") {
  using Blocks = std::vector<std::vector<std::string>>;
  const TemporaryFolder folder;
  const auto blocks_of = [&](const std::string& name, size_t most, const auto& after_block) {
    Blocks blocks;
    for_blocks_of_lines((folder / name).string(), most, [&](const auto& block) {
      blocks.push_back(block);
      after_block();
    });
    return blocks;
  };
  write_bytes(folder / "five", "a\nb\nc\nd\ne");
  CHECK(blocks_of("five", 2, [] {}) == Blocks{{"a", "b"}, {"c", "d"}, {"e"}});
  write_bytes(folder / "four", "a\nb\nc\nd\n");
  CHECK(blocks_of("four", 2, [] {}) == Blocks{{"a", "b"}, {"c", "d"}});
  write_bytes(folder / "bad", "a\nb\nc\n\xFF\nd\n");
  Blocks before;
  const auto keep = [&](const auto& block) { before.push_back(block); };
  CHECK_THROWS_WITH(for_blocks_of_lines((folder / "bad").string(), 2, keep),
                    ContainsSubstring("line 4 of"));
  CHECK(before == Blocks{{"a", "b"}, {"c"}});

  // Whoever writes waits each time until what he wrote was given, 10 seconds at most.
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::counting_semaphore<> given{0};
  int in_time = 0;
  std::jthread writer([&] {
    std::ofstream pipe(folder / "pipe");
    for (const char* text : {"\n", "a\nb\nhalf", " a line\n"}) {
      pipe << text << std::flush;
      in_time += given.try_acquire_for(std::chrono::seconds(10));
    }
  });
  const Blocks blocks = blocks_of("pipe", 100, [&] { given.release(); });
  writer.join();
  CHECK(blocks == Blocks{{""}, {"a", "b"}, {"half a line"}});
  CHECK(in_time == 3);
}

TEST_CASE("files_that_are_no_text_are_refused_with_the_reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_lines((folder / "none").string()), ContainsSubstring("cannot open"));
  CHECK_THROWS_WITH(read_lines(folder.path.string()), ContainsSubstring("is no file"));
  CHECK_THROWS_WITH(read_lines("/dev/zero"), ContainsSubstring("is no file"));
  write_bytes(folder / "latin1", "a\nb\ncaf\xE9\n");
  CHECK_THROWS_WITH(read_lines((folder / "latin1").string()),
                    ContainsSubstring("line 3 of '") && ContainsSubstring("iconv"));
  write_bytes(folder / "utf16", std::string("\xFF\xFE"
                                            "a\0\n\0",
                                            6));
  CHECK_THROWS_WITH(read_lines((folder / "utf16").string()), ContainsSubstring("not UTF-8"));
  write_bytes(folder / "utf16le", std::string("a\0\n\0", 4));  // without a mark
  CHECK_THROWS_WITH(read_lines((folder / "utf16le").string()),
                    ContainsSubstring("line 1 of '") && ContainsSubstring("iconv -f utf-16"));
  write_gzip(folder / "cut.gz", std::string(5000, 'a') + "\n" + generate_pairs(1, 200)[7].source);
  std::filesystem::resize_file(folder / "cut.gz",
                               std::filesystem::file_size(folder / "cut.gz") / 2);
  CHECK_THROWS_WITH(read_lines((folder / "cut.gz").string()), ContainsSubstring("cut off"));
  std::string broken = "\x1F\x8B\x08";
  broken += std::string(7, '\0') + "nonsense that is no deflated data";
  write_bytes(folder / "broken.gz", broken);
  CHECK_THROWS_WITH(read_lines((folder / "broken.gz").string()), ContainsSubstring("cannot read"));
}

TEST_CASE("batches_of_a_fixed_length_mix_all_lengths_and_pad_to_it") {
  const PairOptions options{.batch_tokens = 8 * 45, .longest = 45, .seed = 3, .fixed_length = true};
  const PairCorpus corpus(generate_pairs(1, 100), bytes(), bytes(), options);
  REQUIRE(corpus.long_pairs() > 0);  // so that some of the others are nearly as long
  const int64_t last = corpus.pairs() % 8;
  CHECK(corpus.batches() == corpus.pairs() / 8 + (last > 0));
  int64_t tokens = 0, rows = 0;
  for (int64_t i = 0; i < corpus.batches(); ++i) {
    const PairBatch batch = corpus.training_batch(i);
    CHECK(batch.inputs.dim(1) == 45);
    CHECK(batch.source.ids.dim(1) == 45);
    const auto lengths = row_of(batch.lengths.view({1, -1}), 0);
    if (lengths.size() == 8) CHECK(std::set<int32_t>(lengths.begin(), lengths.end()).size() > 1);
    for (int64_t row = 0; row < batch.inputs.dim(0); ++row) {
      const auto targets = row_of(batch.targets, row);
      CHECK(std::count(targets.begin(), targets.end(), -1) == 45 - lengths[row]);
    }
    tokens += batch.tokens;
    rows += batch.inputs.dim(0);
  }
  CHECK(tokens == corpus.target_tokens());  // every pair once in a pass
  CHECK(rows == corpus.pairs());
}

TEST_CASE("unequal_numbers_of_lines_are_an_error_with_both") {
  CHECK(pairs_objection("a\nb\n", "c\nd") == "");
  const std::string objection = pairs_objection("a\nb\nc\n", "d\n");
  CHECK_THAT(objection, ContainsSubstring("has 3 lines") && ContainsSubstring("1;"));
  CHECK_THAT(pairs_objection("", ""), ContainsSubstring("are empty"));
}

TEST_CASE("pairs_that_are_empty_or_too_long_are_dropped_and_counted") {
  const std::vector<SentencePair> pairs{{"ab", "c"},   {"", "c"},      {"ab", " \t"},
                                        {"abcd", "x"}, {"abcde", "x"}, {"a", "abcdef"},
                                        {"", ""}};
  // A byte for each letter, one for the space before, and the end: "abcd" has 6.
  const PairCorpus corpus(pairs, bytes(), bytes(), {.batch_tokens = 12, .longest = 6});
  CHECK(corpus.pairs() == 2);
  CHECK(corpus.empty_pairs() == 3);
  CHECK(corpus.long_pairs() == 2);
  CHECK(corpus.source_tokens() == 4 + 6);
  CHECK(corpus.target_tokens() == 3 + 3);
  CHECK_THROWS_WITH(PairCorpus({{"", "x"}}, bytes(), bytes(), {}),
                    ContainsSubstring("1 have an empty side") && ContainsSubstring("none is left"));
  CHECK_THROWS_WITH(PairCorpus(pairs, bytes(), bytes(), {.batch_tokens = 5, .longest = 6}),
                    ContainsSubstring("raise batch_tokens or lower longest"));
  CHECK_THROWS_WITH(PairCorpus(pairs, bytes(), bytes(), {.batch_tokens = 12, .longest = 1}),
                    ContainsSubstring("at least 2"));
}

TEST_CASE("a_batch_pads_behind_the_ends") {
  const PairCorpus corpus({{"ab", "xyz"}, {"c", "w"}}, bytes(), bytes(),
                          {.batch_tokens = 20, .longest = 10});
  REQUIRE(corpus.batches() == 1);
  const PairBatch batch = corpus.ordered_batch(0);
  using Ids = std::vector<int32_t>;
  const int32_t end = 256;  // one more than the bytes; the shorter pair comes first
  CHECK(row_of(batch.source.ids, 0) == Ids{' ', 'c', end, end});
  CHECK(row_of(batch.source.ids, 1) == Ids{' ', 'a', 'b', end});
  CHECK(batch.source.lengths.to_vector<int32_t>() == Ids{3, 4});
  CHECK(row_of(batch.inputs, 0) == Ids{end, ' ', 'w', end, end});
  CHECK(row_of(batch.inputs, 1) == Ids{end, ' ', 'x', 'y', 'z'});
  CHECK(row_of(batch.targets, 0) == Ids{' ', 'w', end, -1, -1});
  CHECK(row_of(batch.targets, 1) == Ids{' ', 'x', 'y', 'z', end});
  CHECK(batch.lengths.to_vector<int32_t>() == Ids{3, 5});
  CHECK(batch.tokens == 8);
  CHECK(batch.source_tokens == 7);
  CHECK(batch.padding() == Approx(1 - 15.0 / 18));
}

TEST_CASE("a_pass_holds_every_pair_once_within_the_budget") {
  const PairOptions options{.batch_tokens = 600, .longest = 100, .seed = 3};
  const PairCorpus corpus = languages(400, options);
  REQUIRE(corpus.batches() > 20);
  const auto contents = [&](int64_t pass) {
    std::multiset<std::vector<int32_t>> sources;
    for (int64_t i = 0; i < corpus.batches(); ++i) {
      const PairBatch batch = corpus.training_batch(pass * corpus.batches() + i);
      CHECK(batch.source.ids.numel() <= options.batch_tokens);
      CHECK(batch.inputs.numel() <= options.batch_tokens);
      for (int64_t row = 0; row < batch.inputs.dim(0); ++row) {
        auto ids = row_of(batch.source.ids, row);
        ids.resize(batch.source.lengths.data<int32_t>()[row]);
        sources.insert(ids);
      }
    }
    return sources;
  };
  const auto first = contents(0);
  CHECK(first.size() == 400);
  CHECK(contents(1) == first);
  // Each pass mixes anew, and a batch is a function of its number alone.
  const auto ids = [](const PairCorpus& of, int64_t number) {
    return of.training_batch(number).source.ids.to_vector<int32_t>();
  };
  CHECK(ids(corpus, 5) != ids(corpus, corpus.batches() + 5));
  const PairCorpus again = languages(400, options);
  CHECK(ids(corpus, 5) == ids(again, 5));
  PairOptions other = options;
  other.seed = 4;
  CHECK(ids(corpus, 5) != ids(languages(400, other), 5));
}

TEST_CASE("batches_of_equal_lengths_have_little_padding") {
  const PairCorpus corpus = languages(2000, {.batch_tokens = 2000, .longest = 100});
  double places = 0, padding = 0;
  for (int64_t i = 0; i < corpus.batches(); ++i) {
    const PairBatch batch = corpus.training_batch(i);
    const double here = static_cast<double>(batch.source.ids.numel() + batch.inputs.numel());
    places += here;
    padding += here * batch.padding();
  }
  CHECK(padding / places < 0.15);
}

TEST_CASE("sentences_come_back_from_their_ids") {
  const SentenceCoder coder = bytes(true);
  CHECK(coder.encode("  Ab \n") == std::vector<int32_t>{' ', 'a', 'b'});
  CHECK(coder.encode(" \t").empty());
  CHECK(coder.decode(std::vector<int32_t>{' ', 'a', 256, 'b'}) == "a");
  CHECK(coder.decode(std::vector<int32_t>{'a', '\n', 'b'}) == "a b");
  CHECK(coder.decode(std::vector<int32_t>{'a', 0xC3, 'b', 0xC3, 0xA9, 0xE2}) ==
        "a\xEF\xBF\xBD"
        "b\xC3\xA9\xEF\xBF\xBD");  // a part of a character is U+FFFD
  CHECK(coder.vocabulary() == 257);
}
