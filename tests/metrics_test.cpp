// Metrics and the numbers in them: they read back to the same bits, under every locale.
#include "train/metrics.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/random.h"
#include "tests/catch.h"
#include "tests/locale_with_comma.h"
#include "tests/temporary_folder.h"
#include "train/files.h"
#include "train/format.h"

using namespace tapeformer;

TEST_CASE("metrics_line_holds_what_was_measured_and_nothing_else") {
  CHECK(to_json({.step = 7}) == R"({"step":7})");
  CHECK(to_json({.step = 0, .train_loss = 2.5, .tokens_per_second = 1e21}) ==
        R"({"step":0,"train_loss":2.5,"tokens_per_second":1e+21})");
  CHECK(to_json({.step = 1, .val_loss = 0.1, .lr = 1e-5, .grad_norm = 3}) ==
        R"({"step":1,"val_loss":0.1,"lr":1e-05,"grad_norm":3})");
}

TEST_CASE("metrics_numbers_read_back_to_the_same_bits") {
  const TemporaryFolder folder;
  Generator random(RandomKey{3});
  std::vector<double> values = {0.0, -0.0, 5e-324, 1e308, 0.1, double{0.1f}};
  for (int i = 0; i < 500; ++i) {
    const uint64_t bits = uint64_t{random.next()} << 32 | random.next();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
    values.push_back(static_cast<float>(random.uniform()));
  }
  {
    const LocaleWithComma locale;
    MetricsWriter writer(folder / "m");
    for (const double value : values) writer.write({.step = 1, .train_loss = value});
  }
  const std::vector<Metrics> read = read_metrics(folder / "m");
  REQUIRE(read.size() == values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    // Our reader, another program's, and one that keeps f32.
    CHECK(std::memcmp(&*read[i].train_loss, &values[i], sizeof(double)) == 0);
    CHECK(std::strtod(shortest(values[i]).c_str(), nullptr) == values[i]);
    CHECK(std::strtof(shortest(values[i]).c_str(), nullptr) == static_cast<float>(values[i]));
  }
}

TEST_CASE("metrics_that_are_not_finite_are_null_and_valid_json") {
  const TemporaryFolder folder;
  const double infinity = std::numeric_limits<double>::infinity();
  const Metrics metrics{.step = 3, .train_loss = NAN, .val_loss = infinity, .lr = -infinity};
  const std::string line = to_json(metrics);
  CHECK(line == R"({"step":3,"train_loss":null,"val_loss":null,"lr":null})");
  CHECK(nlohmann::json::accept(line));
  MetricsWriter(folder / "m").write(metrics);
  const Metrics read = read_metrics(folder / "m").at(0);
  CHECK(std::isnan(*read.train_loss));
  CHECK(std::isnan(*read.val_loss));
  CHECK_FALSE(read.grad_norm.has_value());
}

TEST_CASE("a_profile_is_lists_and_objects_in_the_order_of_the_layers") {
  const TemporaryFolder folder;
  const double infinity = std::numeric_limits<double>::infinity();
  const Metrics metrics{.step = 2,
                        .stream_rms = {0.5, infinity},
                        .gradient_norms = {{"blocks.2.w", 0.1}, {"blocks.10.w", NAN}, {"a", -0.0}},
                        .tid = {{"final_norm", 3}}};
  CHECK(
      to_json(metrics) ==
      R"({"step":2,"stream_rms":[0.5,null],)"
      R"("gradient_norms":{"blocks.2.w":0.1,"blocks.10.w":null,"a":-0.0},"tid":{"final_norm":3}})");
  MetricsWriter(folder / "m").write(metrics);
  const Metrics read = read_metrics(folder / "m").at(0);
  REQUIRE(read.stream_rms.size() == 2);
  CHECK(read.stream_rms[0] == 0.5);
  CHECK(std::isnan(read.stream_rms[1]));
  REQUIRE(read.gradient_norms.size() == 3);
  CHECK(read.gradient_norms[0].name == "blocks.2.w");
  CHECK(read.gradient_norms[1].name == "blocks.10.w");
  CHECK(read.gradient_norms[0].value == 0.1);
  CHECK(std::isnan(read.gradient_norms[1].value));
  REQUIRE(read.tid.size() == 1);
  CHECK(read.tid[0].value == 3);
}

TEST_CASE("metrics_lines_are_in_the_file_as_soon_as_they_are_written") {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "m");
  CHECK(read_file(folder / "m") == "");
  writer.write({.step = 1});
  CHECK(read_file(folder / "m") == "{\"step\":1}\n");
  writer.write({.step = 2});
  CHECK(read_metrics(folder / "m").size() == 2);
}

TEST_CASE("metrics_of_a_resumed_run_continue_where_it_resumes") {
  const TemporaryFolder folder;
  const std::string kept = "{\"step\":1,\"lr\":0.10}\n{\"note\":\"é\",  \"step\":2}\n";
  write_bytes(folder / "m",
              kept + "{\"step\":3}\n{\"step\":4}\n{\"step\":1}\n{\"step\":5,\"lr\":0.");
  MetricsWriter(folder / "m", 3).write({.step = 3, .lr = 0.5});
  CHECK(read_file(folder / "m") == kept + "{\"step\":1}\n{\"step\":3,\"lr\":0.5}\n");
  MetricsWriter(folder / "m", 4).write({.step = 3, .val_loss = 0.25});
  MetricsWriter(folder / "m", 4, true);  // measures that again, and nothing else
  CHECK(read_metrics(folder / "m").back().lr == 0.5);
  MetricsWriter(folder / "m", 0).write({.step = 0});
  CHECK(read_file(folder / "m") == "{\"step\":0}\n");
  MetricsWriter(folder / "new", 10).write({.step = 10});
  CHECK(read_metrics(folder / "new").at(0).step == 10);
}

TEST_CASE("metrics_torn_by_a_crash_lose_only_the_torn_line") {
  const TemporaryFolder folder;
  const std::string first = "{\"step\":1}\n", second = "{\"step\":2,\"lr\":0.125}\n";
  for (size_t length = 0; length <= second.size(); ++length) {
    write_bytes(folder / "m", first + second.substr(0, length));
    const size_t expected = length == second.size() ? 2 : 1;
    CHECK(read_metrics(folder / "m").size() == expected);
    MetricsWriter(folder / "m", 3).write({.step = 3});
    CHECK(read_metrics(folder / "m").size() == expected + 1);
  }
}

TEST_CASE("metrics_reader_names_the_line_that_it_cannot_read") {
  const TemporaryFolder folder;
  for (const std::string line :
       {"nonsense", "{}", "[1]", "{\"step\":\"1\"}", "{\"step\":1.5}", "{\"step\":1,\"lr\":\"x\"}",
        "{\"step\":1,\"stream_rms\":3}", "{\"step\":1,\"stream_rms\":[\"x\"]}",
        "{\"step\":1,\"tid\":[1]}", "{\"step\":1,\"tid\":{\"a\":\"x\"}}", ""}) {
    write_bytes(folder / "m", "{\"step\":1}\n" + line + "\n{\"step\":2}\n");
    CHECK_THROWS_WITH(read_metrics(folder / "m"),
                      ContainsSubstring("m, line 2 is not of the form"));
  }
  CHECK_THROWS_WITH(read_metrics(folder / "none"), ContainsSubstring("No such file"));
}

TEST_CASE("metrics_that_the_disk_does_not_hold_are_an_error") {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "m");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{5, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    writer.write({.step = 1});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(message == "metrics: cannot write " + (folder / "m").string() + ": File too large");
}

TEST_CASE("numbers_as_text_are_the_same_under_every_locale") {
  const LocaleWithComma locale;
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(1e300) == "1e+300");
  CHECK(fixed(1.8512, 2) == "1.85");
  CHECK(fixed(-0.005, 1) == "-0.0");
  CHECK(fixed(1e15, 0) == "1000000000000000");
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1234567) == "1,234,567");
  CHECK(grouped(-123456) == "-123,456");
  CHECK(grouped(-1234) == "-1,234");
  CHECK(compact(4.561) == "4.56");
  CHECK(compact(950.4) == "950");
  CHECK(compact(999.6) == "1.00k");
  CHECK(compact(12345) == "12.3k");
  CHECK(compact(999600) == "1.00M");
  CHECK(compact(-5e13) == "-50.0T");
  CHECK(duration(0) == "0:00");
  CHECK(duration(59.6) == "1:00");
  CHECK(duration(3599) == "59:59");
  CHECK(duration(36001) == "10:00:01");
  CHECK(duration(NAN) == "?");
  CHECK(duration(-1) == "?");
}

TEST_CASE("a_shell_takes_any_text_as_one_word") {
  CHECK(shell_word("build/examples/train_gpt") == "build/examples/train_gpt");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("my runs/$1") == "'my runs/$1'");
  CHECK(shell_word("it's") == "'it'\\''s'");
}
