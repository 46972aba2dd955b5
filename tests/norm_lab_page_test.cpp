// docs/norm_lab.md says what its tables say: every verdict follows from the runs beside it, and the
// page from the cards; and no table that lost some of its runs breaks a judge.
#include <filesystem>

#include "lab/experiments/experiments.h"
#include "lab/report.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "train/files.h"

using namespace tapeformer;
using namespace tapeformer::lab;

TEST_CASE("every_verdict_of_the_lab_page_follows_from_its_runs") {
  const std::filesystem::path docs = std::filesystem::path(TAPEFORMER_SOURCE_DIR) / "docs";
  std::vector<Card> cards;
  for (const Experiment& experiment : built_in_experiments()) {
    CAPTURE(experiment.name);
    const std::filesystem::path files = docs / "norm_lab";
    const Card card = card_from_json(read_file(files / (experiment.name + ".json")));
    cards.push_back(card);
    CHECK(card.claim == experiment.claim);
    CHECK(card.rule == experiment.rule);
    if (!experiment.measure) continue;
    CHECK(card.seeds >= 3);
    const Table runs = Table::from_csv(read_file(files / (experiment.name + ".csv")));
    const Judgement judgement = experiment.judge(runs);
    CHECK(name_of(judgement.verdict) == std::string(name_of(card.judgement.verdict)));
    REQUIRE(judgement.measured.size() == card.judgement.measured.size());
    for (size_t i = 0; i < judgement.measured.size(); ++i)
      CHECK(to_text(judgement.measured[i].values) == to_text(card.judgement.measured[i].values));
    CHECK(experiment.draw(runs).svg() == read_file(files / (experiment.name + ".svg")));
  }
  CHECK(read_file(docs / "norm_lab.md") ==
        report(cards, "norm_lab", read_file(docs / "norm_lab" / "about.md")));
}

namespace {

// The rows of the table for which keep(number of the row, row) is true.
template <class F>
Table kept(const Table& table, const F& keep) {
  Table result(table.columns());
  for (size_t i = 0; i < table.rows().size(); ++i)
    if (keep(i, table.rows()[i])) result.add(table.rows()[i]);
  return result;
}

// Whether an error keeps the table from being judged and drawn.
bool is_refused(const Experiment& experiment, const Table& table) {
  try {
    experiment.judge(table);
    experiment.draw(table).svg();
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

TEST_CASE("a_table_that_lost_runs_is_judged_or_refused_and_breaks_nothing") {
  for (const Experiment& experiment : built_in_experiments()) {
    if (!experiment.measure) continue;
    CAPTURE(experiment.name);
    const Table runs = read_table(std::filesystem::path(TAPEFORMER_SOURCE_DIR) / "docs" /
                                  "norm_lab" / (experiment.name + ".csv"));
    const size_t count = runs.rows().size();
    const auto refused = [&](const auto& keep) { return is_refused(experiment, kept(runs, keep)); };
    CHECK_FALSE(refused([](size_t, const auto&) { return true; }));
    CHECK(refused([](size_t row, const auto&) { return row == 0; }));
    for (const size_t parts : {2, 3, 5}) {
      refused([=](size_t row, const auto&) { return row < count / parts; });
      refused([=](size_t row, const auto&) { return row % parts == 0; });
    }
    refused([=](size_t row, const auto&) { return row + 1 < count; });
    for (size_t column = 0; column < runs.columns().size(); ++column) {
      const std::vector<Cell> values = runs.distinct(runs.columns()[column]);
      if (values.size() == 1 || values.size() > 5) continue;
      for (const Cell& value : values) {
        refused([&](size_t, const auto& row) { return row[column] == value; });
        refused([&](size_t, const auto& row) { return row[column] != value; });
      }
    }
  }
}

TEST_CASE("a_table_without_runs_is_refused") {
  const TemporaryFolder folder;
  for (const Experiment& experiment : built_in_experiments()) {
    if (!experiment.measure) continue;
    CAPTURE(experiment.name);
    const auto docs = std::filesystem::path(TAPEFORMER_SOURCE_DIR) / "docs" / "norm_lab";
    const std::string runs = content(docs / (experiment.name + ".csv"));
    write_bytes(folder / (experiment.name + ".json"), content(docs / (experiment.name + ".json")));
    write_bytes(folder / (experiment.name + ".csv"), runs.substr(0, runs.find('\n') + 1));
    CHECK_THROWS_WITH(judge_again(experiment, folder.path), ContainsSubstring("no runs to judge"));
  }
}
