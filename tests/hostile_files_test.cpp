// Files that somebody made up, changed or took away: a message with file and reason, never a crash.
#include <cmath>

#include "data/corpus.h"
#include "data/json_text.h"
#include "lab/card.h"
#include "lab/grid.h"
#include "lab/report.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "train/checkpoint.h"
#include "train/language_model.h"
#include "train/metrics.h"
#include "train/model_config.h"
#include "train/number_option.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

std::string repeated(const std::string& piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

constexpr int deep = 200'000;  // levels; a stack frame for each would be too many

}  // namespace

TEST_CASE("json_is_modest_when_it_is_short_and_flat") {
  CHECK(is_modest_json(R"({"a":[1,{"b":[]}]})"));
  CHECK(is_modest_json(repeated("[", 16)));
  CHECK(!is_modest_json(repeated("[", 17)));
  CHECK(!is_modest_json(repeated("{\"a\":", 17)));
  CHECK(is_modest_json(repeated("[]", 100)));
  CHECK(is_modest_json("\"" + repeated("[", 100) + "\\\"" + repeated("[", 100) + "\""));
  CHECK(!is_modest_json("\"\\\\\"" + repeated("[", 17)));
  CHECK(!is_modest_json("12345", 4));
}

TEST_CASE("deeply_nested_json_is_refused_wherever_json_is_read") {
  const std::string array = repeated("[", deep) + repeated("]", deep);
  CHECK_THROWS_WITH(config_from_json("{\"norm\":" + array + "}"),
                    ContainsSubstring("model configuration: too long or too deeply nested"));
  CHECK_THROWS_WITH(Tokenizer::from_json("{\"name\":" + array + "}"),
                    ContainsSubstring("tokenizer: its JSON is too long or too deeply nested"));
  CHECK_THROWS_WITH(lab::card_from_json("{\"name\":" + array + "}"),
                    ContainsSubstring("card: too long or too deeply nested"));
  const TemporaryFolder folder;
  write_bytes(folder / "metrics.jsonl", "{\"step\":1,\"other\":" + array + "}\n");
  CHECK_THROWS_WITH(read_metrics(folder / "metrics.jsonl"),
                    ContainsSubstring("metrics.jsonl, line 1"));
}

TEST_CASE("a_text_is_a_copy_that_outlives_its_file") {
  const TemporaryFolder folder;
  const std::string content = repeated("some text\n", 10'000);
  write_bytes(folder / "text.txt", content);
  const Text text = Text::from_file((folder / "text.txt").string());
  const TextCorpus corpus(text, ByteTokenizer(), {.rows = 2, .context = 16});
  fs::resize_file(folder / "text.txt", 0);
  CHECK(text.view() == content);
  CHECK(corpus.training_batch(5).tokens == 32);
}

TEST_CASE("a_device_without_an_end_is_no_text") {
  CHECK_THROWS_WITH(Text::from_file("/dev/zero"), ContainsSubstring("/dev/zero' is a device"));
}

TEST_CASE("metrics_go_on_in_a_new_file_when_theirs_is_removed") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write({.step = 1});
  fs::remove(path);
  writer.write({.step = 2});
  writer.write({.step = 3});
  const auto metrics = read_metrics(path);
  REQUIRE(metrics.size() == 2);
  CHECK(metrics[0].step == 2);
  fs::remove_all(folder.path);
  CHECK_THROWS_WITH(writer.write({.step = 4}),
                    ContainsSubstring("metrics: cannot open " + path.string()));
}

TEST_CASE("a_batch_larger_than_any_memory_is_refused_before_it_is_made") {
  const Text text(repeated("abc\n", 100), "text");
  for (const int64_t rows : {int64_t{1} << 40, INT64_MAX}) {
    const BatchOptions options{.rows = rows, .context = 4};
    CHECK_THROWS_WITH(TextCorpus(text, ByteTokenizer(), options),
                      ContainsSubstring("lower batch (the rows) or context"));
    CHECK_THROWS_WITH(LineCorpus(text, ByteTokenizer(), options),
                      ContainsSubstring("lower batch (the rows) or context"));
  }
}

TEST_CASE("numbers_on_a_command_line_are_decimal_and_in_range") {
  CHECK(number_objection<int64_t>("-12") == "");
  CHECK(number_objection<double>("1e-3") == "");
  for (const char* text : {"", " 1", "010", "0x10", "1.5", "+1", "9223372036854775808", "1x"}) {
    CAPTURE(text);
    CHECK_THAT(number_objection<int64_t>(text), ContainsSubstring("is no whole number from -9223"));
  }
  CHECK_THAT(number_objection<uint64_t>("-1"), ContainsSubstring("from 0 to 18446744073709551615"));
  for (const char* text : {"", "1,5", "1e400", "one", "1.5x"})
    CHECK_THAT(number_objection<double>(text), ContainsSubstring("is no number"));
}

TEST_CASE("a_grid_names_every_axis_and_value_once_and_has_an_end") {
  using lab::parse_grid;
  CHECK_THROWS_WITH(parse_grid("depth=1,depth=2"), ContainsSubstring("axis depth is named twice"));
  CHECK_THROWS_WITH(parse_grid("lr=0.001,1e-3"), ContainsSubstring("lr has the value 0.001 twice"));
  CHECK_THROWS_WITH(parse_grid("norms=dyt,dyt"),
                    ContainsSubstring("norms has the value dyt twice"));
  CHECK_THROWS_WITH(parse_grid("steps=9223372036854775807"), ContainsSubstring("0 ... 1000000000"));
  std::string large = "lr=0";
  for (int i = 1; i < 400; ++i) large += "," + std::to_string(i);
  CHECK(parse_grid(large).lr.size() == 400);
  CHECK_THROWS_WITH(parse_grid(large + ",clip" + large.substr(2)),
                    ContainsSubstring("160000 combinations, more than 100000"));
}

TEST_CASE("tables_and_cards_that_cannot_be_read_are_named") {
  const TemporaryFolder folder;
  write_bytes(folder / "a.csv", "norm,loss\nlayernorm,1");
  CHECK_THROWS_WITH(lab::read_table(folder / "a.csv"),
                    ContainsSubstring("a.csv is no table: csv: the last line is cut off"));
  write_bytes(folder / "a.json", "{\"name\":1}");
  CHECK_THROWS_WITH(lab::read_card(folder / "a.json"),
                    ContainsSubstring("a.json is no card: card:"));
}

TEST_CASE("a_card_of_a_text_whose_name_is_no_utf8_can_be_written") {
  const lab::Card card{.name = "leak", .data = "caf\xe9.txt"};
  CHECK(lab::card_from_json(lab::to_json(card)).data == "caf\uFFFD.txt");
}

TEST_CASE("a_report_knows_before_the_work_where_it_cannot_be_written") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(lab::prepare_report(folder / "page"), ContainsSubstring("name with an ending"));
  fs::create_directory(folder / "page.md");
  CHECK_THROWS_WITH(lab::prepare_report(folder / "page.md"), ContainsSubstring("is a folder"));
  write_bytes(folder / "file", "x");
  CHECK_THROWS_WITH(lab::prepare_report(folder / "file" / "page.md"),
                    ContainsSubstring("cannot make the folder"));
  lab::prepare_report(folder / "new" / "page.md");
  CHECK(fs::is_directory(folder / "new" / "page"));
  const std::string page = lab::report({{.name = "one"}}, "my plots");
  CHECK_THAT(page, ContainsSubstring("![one](<my plots/one.svg>)"));
}

TEST_CASE("a_configuration_that_claims_more_than_its_file_holds_costs_no_memory") {
  const TemporaryFolder folder;
  const TransformerConfig config{
      .vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .channels = 8};
  GPT model(config);
  const auto objection = [&](const TransformerConfig& claimed) -> std::string {
    save_model(folder / "m",
               {.config = to_json(claimed), .tokenizer = CharacterTokenizer("abcde").to_json()},
               model);
    try {
      load_language_model(folder / "m");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(objection(config) == "");
  const auto claim = [&](int64_t TransformerConfig::*field, int64_t value) {
    TransformerConfig claimed = config;
    claimed.*field = value;
    return objection(claimed);
  };
  for (const int64_t value : {int64_t{1'000'000}, int64_t{1} << 40, INT64_MAX})
    for (const auto field : {&TransformerConfig::vocabulary, &TransformerConfig::context,
                             &TransformerConfig::channels, &TransformerConfig::hidden}) {
      CAPTURE(value);
      CHECK_THAT(claim(field, value), ContainsSubstring("its configuration asks for"));
    }
  CHECK_THAT(claim(&TransformerConfig::layers, 1'000'000), ContainsSubstring("layers are more"));
}
