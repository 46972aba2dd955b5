// docs/norm_lab.md says what its tables say: every verdict follows from the runs beside it, and the
// page from the cards.
#include <filesystem>

#include "lab/experiments/experiments.h"
#include "lab/report.h"
#include "tests/catch.h"
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
