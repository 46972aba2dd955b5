#include "lab/experiment.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "lab/experiments/experiments.h"
#include "train/files.h"

namespace tapeformer::lab {
namespace {

std::deque<Experiment>& table() {
  static std::deque<Experiment> all = [] {
    auto list = built_in_experiments();
    return std::deque<Experiment>(std::make_move_iterator(list.begin()),
                                  std::make_move_iterator(list.end()));
  }();
  return all;
}

// Where the literature says something else than `verdict`; nothing where it agrees or is silent.
std::string remark_on(const Experiment& experiment, std::optional<Verdict> verdict) {
  if (!experiment.expected || experiment.expected == verdict) return "";
  const std::string in_literature =
      std::string(*experiment.expected == Verdict::reversed ? "is " : "") +
      name_of(*experiment.expected);
  if (!verdict || *verdict == Verdict::not_decidable)
    return "According to the literature the claim " + in_literature + ".";
  return "Differs from the literature, according to which the claim " + in_literature + ".";
}

}  // namespace

const std::deque<Experiment>& experiments() { return table(); }

void register_experiment(Experiment experiment) {
  check(std::ranges::none_of(table(), [&](const auto& e) { return e.name == experiment.name; }),
        "the experiment '", experiment.name, "' is registered already; choose another name");
  check(!experiment.measure || (experiment.judge && experiment.draw), "the experiment '",
        experiment.name, "' measures, so it needs judge() and draw() too");
  table().push_back(std::move(experiment));
}

const Experiment& find_experiment(const std::string& name) {
  std::vector<std::string> names;
  for (const Experiment& experiment : table()) {
    if (experiment.name == name) return experiment;
    names.push_back(experiment.name);
  }
  fail("there is no experiment '", name, "'; known are ", names);
}

namespace {

Card card_of(const Experiment& experiment) {
  return {.name = experiment.name,
          .claim = experiment.claim,
          .source = experiment.source,
          .literature = experiment.literature,
          .method = experiment.method,
          .rule = experiment.rule,
          .remark = remark_on(experiment, {}),
          .measured_here = static_cast<bool>(experiment.measure)};
}

// The verdict and the plot of a table, onto the card and into the folder.
void conclude(const Experiment& experiment, const Table& runs, const std::filesystem::path& out,
              Card& card) {
  check(!runs.empty(), "the experiment '", experiment.name, "' has no runs to judge");
  card.judgement = experiment.judge(runs);
  const std::string of_literature =
      card.replaced.empty() ? remark_on(experiment, card.judgement.verdict) : "";
  card.remark = card.judgement.remark;
  card.remark += (card.remark.empty() || of_literature.empty() ? "" : " ") + of_literature;
  experiment.draw(runs).save(out / (experiment.name + ".svg"));
}

}  // namespace

Card run_experiment(const Experiment& experiment, const Laboratory& laboratory,
                    const std::filesystem::path& out) {
  Card card = card_of(experiment);
  make_folder(out);
  if (experiment.measure) {
    laboratory.log(experiment.name + " ...");
    const auto start = std::chrono::steady_clock::now();
    const Table runs = experiment.measure(laboratory);
    card.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    card.seeds = static_cast<int>(laboratory.seeds().size());
    card.data = laboratory.name_of(experiment.data) + (laboratory.quick() ? "; quick sizes" : "");
    card.replaced = laboratory.replaced();
    write_file_atomically(out / (experiment.name + ".csv"), runs.csv());
    conclude(experiment, runs, out, card);
  }
  write_file_atomically(out / (experiment.name + ".json"), to_json(card));
  return card;
}

Card judge_again(const Experiment& experiment, const std::filesystem::path& out) {
  Card card = card_of(experiment);
  const std::filesystem::path path = out / (experiment.name + ".json");
  if (experiment.measure) {
    check(std::filesystem::exists(path), path, " does not exist; run '", experiment.name,
          "' before judging it again");
    const Card before = read_card(path);
    card.seconds = before.seconds;
    card.seeds = before.seeds;
    card.data = before.data;
    card.replaced = before.replaced;
    conclude(experiment, read_table(out / (experiment.name + ".csv")), out, card);
  }
  write_file_atomically(path, to_json(card));
  return card;
}

}  // namespace tapeformer::lab
