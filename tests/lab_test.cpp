// The norm lab's frame: tables, cards, verdicts, the grid, and what a user's own norm can do in it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/experiment.h"
#include "lab/grid.h"
#include "lab/report.h"
#include "layers/float16.h"
#include "layers/token_norms.h"
#include "tests/catch.h"
#include "tests/sham.h"
#include "tests/temporary_folder.h"
#include "train/files.h"

using namespace tapeformer;
using namespace tapeformer::lab;

namespace {

Laboratory quick_lab() { return Laboratory({.quick = true, .seeds = 1}); }

}  // namespace

TEST_CASE("a_table_reads_back_from_its_csv_bit_by_bit") {
  Table table({"norm, \"quoted\"", "loss", "note"});
  table.add({"layer\nnorm", 0.1 + 0.2, "1e"});
  table.add({"b", std::nan(""), ""});
  table.add({"", -INFINITY, "two, words"});
  const Table again = Table::from_csv(table.csv());
  CHECK(again.columns() == table.columns());
  CHECK(again.csv() == table.csv());
  CHECK(again.rows()[0] == table.rows()[0]);
  CHECK(std::isnan(again.numbers("loss")[1]));
  CHECK(again.rows()[2] == table.rows()[2]);
}

TEST_CASE("a_table_finds_rows_and_says_what_it_lacks") {
  Table table({"norm", "loss"});
  table.add({"a", 1.0});
  table.add({"b", 2.0});
  table.add({"a", 3.0});
  CHECK(table.where("norm", "a").numbers("loss") == std::vector<double>{1, 3});
  CHECK(table.where("norm", "b").number("loss") == 2);
  CHECK(table.distinct("norm") == std::vector<Cell>{"a", "b"});
  CHECK_THROWS_WITH(table.where("placement", "pre"), ContainsSubstring("no column 'placement'"));
  CHECK_THROWS_WITH(table.where("norm", "c"), ContainsSubstring("no row has 'c' in column 'norm'"));
  CHECK_THROWS_WITH(table.numbers("norm"), ContainsSubstring("'a' in column 'norm' is no number"));
  CHECK_THROWS_WITH(table.number("loss"), ContainsSubstring("among 3 rows"));
  CHECK_THROWS_WITH(table.add({"c"}), ContainsSubstring("needs 2 cells"));
  CHECK_THROWS_WITH(Table::from_csv("a,b\n1,2"), ContainsSubstring("cut off"));
  CHECK_THROWS_WITH(Table::from_csv("a,b\n1\n"), ContainsSubstring("needs 2 cells"));
  CHECK_THROWS_WITH(Table::from_csv(""), ContainsSubstring("no header"));
  CHECK_THROWS_WITH(Table::from_csv("\"a\n"), ContainsSubstring("cut off"));
}

TEST_CASE("a_verdict_follows_from_the_differences_of_all_seeds") {
  CHECK(judge_differences({0.3, 0.2, 0.11}, 0.1) == Verdict::holds);
  CHECK(judge_differences({0.3, 0.2, 0.09}, 0.1) == Verdict::not_decidable);
  CHECK(judge_differences({-0.3, -0.2, -0.11}, 0.1) == Verdict::reversed);
  CHECK(judge_differences({-0.1, 0, 0.1}, 0.1) == Verdict::does_not_hold);
  CHECK(judge_differences({-0.3, 0.3}, 0.1) == Verdict::not_decidable);
  CHECK(judge_differences({0.3, std::nan("")}, 0.1) == Verdict::not_decidable);
  CHECK(judge_differences({}, 0.1) == Verdict::not_decidable);
  CHECK(spread({1, 2, 3}).mean == 2);
  CHECK(spread({1, 2, 3}).deviation == 1);
  CHECK(spread({7}).deviation == 0);
  CHECK(to_text(std::vector<double>{1, 2, 3}) == "2 +- 1 (3)");
  CHECK(to_text({20, INFINITY, NAN}) == "20.0, not finite, not finite");
}

TEST_CASE("a_card_reads_back_from_its_json") {
  Card card{.name = "x", .claim = "\"A\" is so.", .source = "s", .data = "d", .seeds = 3};
  card.seconds = 1.5;
  card.judgement = {Verdict::reversed, {{"one", {1.25}}, {"two", {1, std::nan("")}}}};
  const auto json = nlohmann::json::parse(to_json(card));
  CHECK(json["verdict"] == "reversed");
  CHECK(json["measured"]["one"] == 1.25);
  CHECK(json["measured"]["two"][1].is_null());
  CHECK(json["seeds"] == 3);
  const Card again = card_from_json(to_json(card));
  CHECK(again.claim == card.claim);
  CHECK(again.judgement.verdict == Verdict::reversed);
  CHECK(again.judgement.measured[0].values == std::vector<double>{1.25});
  CHECK(std::isnan(again.judgement.measured[1].values[1]));
  CHECK_THROWS_WITH(card_from_json("[]"), ContainsSubstring("not a JSON object"));
  CHECK_THROWS_WITH(card_from_json("{\"name\": 3}"), ContainsSubstring("card: "));
}

TEST_CASE("a_grid_is_read_and_its_mistakes_are_named") {
  const Grid grid = parse_grid("norms=layernorm,rmsnorm,depth=2,4,8,lr=1e-3");
  CHECK(grid.norms == std::vector<std::string>{"layernorm", "rmsnorm"});
  CHECK(grid.depth == std::vector<int64_t>{2, 4, 8});
  CHECK(grid.lr == std::vector<double>{1e-3});
  CHECK(grid.placements == std::vector<std::string>{"pre"});
  CHECK_THROWS_WITH(parse_grid("norm=layernorm"), ContainsSubstring("no axis 'norm'"));
  CHECK_THROWS_WITH(parse_grid("norms=layrnorm"), ContainsSubstring("no norm 'layrnorm'"));
  CHECK_THROWS_WITH(parse_grid("depth=2.5"), ContainsSubstring("'2.5' is no whole number"));
  CHECK_THROWS_WITH(parse_grid("lr=fast"), ContainsSubstring("'fast' is no number"));
  CHECK_THROWS_WITH(parse_grid("depth=0"), ContainsSubstring("must be positive"));
  CHECK_THROWS_WITH(parse_grid("lr=inf"), ContainsSubstring("must be finite"));
  CHECK_THROWS_WITH(parse_grid("layernorm"), ContainsSubstring("AXIS=VALUE"));
  CHECK_THROWS_WITH(parse_grid(""), ContainsSubstring("names no axis"));
}

TEST_CASE("a_norm_of_ones_own_takes_part_in_the_grid_which_goes_on_where_it_stopped") {
  struct Halved : RMSNorm {
    using RMSNorm::RMSNorm;
    Tensor forward(const Tensor& x, const NormContext& context) override {
      return 0.5 * RMSNorm::forward(x, context);
    }
  };
  register_norm("halved", [](int64_t channels) { return std::make_unique<Halved>(channels); });
  const TemporaryFolder folder;
  int ran = 0;
  const Laboratory lab({.quick = true, .seeds = 1, .log = [&](const std::string& line) {
                          ran += line.find("loss") != std::string::npos;
                        }});
  const auto run = [&](const std::string& norms) {
    return run_grid(parse_grid("norms=" + norms + ",depth=1,batch=2,steps=2"), lab, folder.path);
  };
  run("rmsnorm");
  CHECK(ran == 1);
  const Table both = run("rmsnorm,halved");
  CHECK(ran == 2);  // the first run was there already
  CHECK(both.rows().size() == 2);
  CHECK(both.numbers("validation_loss")[0] != both.numbers("validation_loss")[1]);
  CHECK(run("halved,rmsnorm").numbers("validation_loss")[1] == both.numbers("validation_loss")[0]);
  CHECK(ran == 2);
  const std::string summary = grid_summary(both);
  CHECK_THAT(summary, ContainsSubstring("halved") && ContainsSubstring("rmsnorm"));
  write_file_atomically(folder.path / "grid.csv", std::string("a,b\n1,2\n"));
  CHECK_THROWS_WITH(run("rmsnorm"), ContainsSubstring("no table of grid runs"));
}

TEST_CASE("runs_that_diverge_or_get_stuck_are_told_apart") {
  const Laboratory lab = quick_lab();
  auto model = lab.reference(1, "none", "pre");
  model.context = 16;
  const Outcome stuck =
      lab.train_on_text({.model = model, .batch = 2, .steps = 4, .lr = 0, .validation_batches = 1});
  CHECK(stuck.stuck);
  CHECK_FALSE(stuck.diverged);
  const Outcome diverged = lab.train_on_text(
      {.model = model, .batch = 2, .steps = 20, .lr = 1e30, .validation_batches = 1});
  CHECK(diverged.diverged);
  CHECK(diverged.losses.size() < 20);
  model.norm = "layernorm";
  const Outcome learned = lab.train_on_text(
      {.model = model, .batch = 8, .steps = 60, .lr = 1e-2, .validation_batches = 2});
  CHECK_FALSE(learned.stuck);
  CHECK_FALSE(learned.diverged);
}

TEST_CASE("an_experiment_leaves_a_table_a_card_and_a_plot_and_its_verdict_follows_from_the_table") {
  const TemporaryFolder folder;
  const Experiment& experiment = find_experiment("accumulation");
  const Card card = run_experiment(experiment, quick_lab(), folder.path);
  CHECK(card.judgement.verdict == Verdict::does_not_hold);
  CHECK(card.data == "the embedded stories; quick sizes");
  const Table runs = Table::from_csv(read_file(folder.path / "accumulation.csv"));
  const auto json = nlohmann::json::parse(read_file(folder.path / "accumulation.json"));
  CHECK(json["verdict"] == name_of(experiment.judge(runs).verdict));
  CHECK_THAT(read_file(folder.path / "accumulation.svg"), ContainsSubstring("<svg"));
  CHECK(to_json(judge_again(experiment, folder.path)) == to_json(card));
  CHECK_THROWS_WITH(judge_again(find_experiment("leak"), folder.path),
                    ContainsSubstring("run 'leak' before judging it again"));
}

TEST_CASE("a_sham_under_the_name_of_batchnorm_changes_the_verdict") {
  const Sham sham("batchnorm", "layernorm");
  const auto verdict = [](const char* name) {
    const Experiment& experiment = find_experiment(name);
    return experiment.judge(experiment.measure(quick_lab())).verdict;
  };
  CHECK(verdict("accumulation") == Verdict::holds);
  CHECK(verdict("leak") == Verdict::does_not_hold);
}

TEST_CASE("shams_under_other_names_change_the_verdicts_of_other_experiments") {
  register_float16_norms();
  const auto verdict = [](const char* name) {
    const Experiment& experiment = find_experiment(name);
    return experiment.judge(experiment.measure(quick_lab())).verdict;
  };
  {
    const Sham sham("layernorm-float16", "layernorm");  // float32, which does not overflow
    CHECK(verdict("float16-overflow") == Verdict::does_not_hold);
  }
  const Sham sham("layernorm-float16-clamp", "layernorm");  // a clamp that cuts nothing
  CHECK(verdict("float16-remedies") == Verdict::holds);
}

TEST_CASE("an_experiment_of_ones_own_is_found_by_name") {
  const Experiment mine{.name = "mine",
                        .claim = "One is more than nothing.",
                        .measure =
                            [](const Laboratory&) {
                              Table table({"seed", "value"});
                              table.add({1.0, 1.0});
                              return table;
                            },
                        .judge =
                            [](const Table& table) {
                              return Judgement{judge_differences(table.numbers("value"), 0), {}};
                            },
                        .draw = [](const Table&) { return Figure{}; }};
  register_experiment(mine);
  CHECK_THROWS_WITH(register_experiment(mine), ContainsSubstring("registered already"));
  const TemporaryFolder folder;
  const Card card = run_experiment(find_experiment("mine"), quick_lab(), folder.path);
  CHECK(card.judgement.verdict == Verdict::holds);
  CHECK(card.remark.empty());
  const auto remark = [&](std::optional<Verdict> expected, double value) {
    Experiment other = mine;
    other.expected = expected;
    other.measure = [value](const Laboratory&) {
      Table table({"seed", "value"});
      table.add({1.0, value});
      return table;
    };
    return run_experiment(other, quick_lab(), folder.path).remark;
  };
  CHECK(remark(Verdict::holds, 1) == "");
  CHECK(remark(Verdict::reversed, 1) ==
        "Differs from the literature, according to which the claim is reversed.");
  CHECK(remark(Verdict::holds, NAN) == "According to the literature the claim holds.");
  CHECK_THROWS_WITH(find_experiment("your"),
                    ContainsSubstring("no experiment 'your'") && ContainsSubstring("mine"));
}

TEST_CASE("the_report_shows_every_statement_first_and_then_the_cards") {
  Card tested{.name = "one", .claim = "A.", .data = "a text", .seeds = 3};
  tested.judgement = {Verdict::reversed, {{"loss", {1, 2}}}};
  Card untested{.name = "two", .claim = "B.", .literature = "no", .measured_here = false};
  const std::string page = report({tested, untested}, "plots");
  const size_t row = page.find("| A. | [reversed](#one) | ![one](plots/one.svg) |");
  const size_t second = page.find("| B. | [not tested here](#two) | |");
  const size_t card = page.find("## one");
  CHECK(row < second);
  CHECK(second < card);
  CHECK_THAT(page, ContainsSubstring("| loss | 1.5 +- 0.71 (2) |") &&
                       ContainsSubstring("**Measured on:** a text") &&
                       ContainsSubstring("](plots/one.json)") &&
                       ContainsSubstring("](plots/two.json)"));
  CHECK_THAT(report({tested}, "plots", "About it.\n"),
             ContainsSubstring("\n\nAbout it.\n\nWritten by"));
}

TEST_CASE("the_method_of_an_experiment_tells_its_quick_sizes") {
  for (const Experiment& experiment : experiments()) {
    std::string file = experiment.name + ".cpp";
    std::ranges::replace(file, '-', '_');
    const auto path = std::filesystem::path(TAPEFORMER_SOURCE_DIR) / "lab" / "experiments" / file;
    if (!std::filesystem::exists(path)) continue;
    CAPTURE(experiment.name);
    const std::string source = read_file(path);
    const bool has_sizes = source.find("lab.size") != std::string::npos ||
                           source.find("lab.quick()") != std::string::npos;
    const bool tells = experiment.method.find("uick: ") != std::string::npos;
    CHECK(tells == has_sizes);
  }
}

TEST_CASE("warm_up_is_judged_at_the_better_rate_of_each_placement") {
  const auto judged = [](double post_alone, double post_helped) {
    Table table({"placement", "warmup", "lr", "seed", "loss", "stuck", "diverged"});
    for (const double seed : {1.0, 2.0})
      for (const double lr : {5e-4, 1e-3}) {
        const double worse = lr > 6e-4 ? 0.5 : 0;
        table.add(
            {"post", "no", lr, seed, worse ? std::nan("") : post_alone, 0.0, worse ? 1. : 0.});
        table.add({"post", "yes", lr, seed, post_helped + worse, 0.0, 0.0});
        table.add({"pre", "no", lr, seed, 2.4 + worse, 0.0, 0.0});
        table.add({"pre", "yes", lr, seed, 2.45 + worse, 0.0, 0.0});
      }
    return find_experiment("warmup").judge(table).verdict;
  };
  CHECK(judged(3.3, 2.6) == Verdict::holds);
  CHECK(judged(2.7, 2.7) == Verdict::does_not_hold);
  CHECK(judged(2.7, 2.9) == Verdict::reversed);
  CHECK(judged(std::nan(""), 2.6) == Verdict::holds);  // it never trained without
}

TEST_CASE("the_card_of_the_warm_up_counts_runs_that_got_stuck_or_diverged") {
  Table table({"placement", "warmup", "lr", "seed", "loss", "stuck", "diverged"});
  for (const double lr : {5e-4, 1e-3})
    for (const double seed : {1, 2, 3})
      for (const char* placement : {"post", "pre"})
        for (const char* warmup : {"no", "yes"}) {
          const bool alone = *placement == 'p' && placement[1] == 'o' && *warmup == 'n';
          table.add({placement, warmup, lr, seed, 2.5, alone && seed < 3 ? 1.0 : 0.0,
                     alone && seed == 3 && lr > 6e-4 ? 1.0 : 0.0});
        }
  const auto count = [&](const char* row) {
    for (const Measured& measured : find_experiment("warmup").judge(table).measured)
      if (measured.name == row) return measured.values;
    return std::vector<double>{};
  };
  CHECK(count("post, no warm-up: stuck of 6 runs") == std::vector<double>{4});
  CHECK(count("post, no warm-up: diverged of 6 runs") == std::vector<double>{1});
  CHECK(count("post, warm-up: stuck of 6 runs") == std::vector<double>{0});
  CHECK(count("pre, no warm-up: diverged of 6 runs") == std::vector<double>{0});
}
