#include "lab/experiment.h"

#include <algorithm>
#include <chrono>

#include "lab/experiments/experiments.h"
#include "train/files.h"

namespace tapeformer::lab {
namespace {

std::vector<Experiment>& table() {
  static std::vector<Experiment> all = built_in_experiments();
  return all;
}

std::string remark_on(const Experiment& experiment, Verdict verdict) {
  if (!experiment.expected || *experiment.expected == verdict) return "";
  return std::string("Differs from the literature, after which the claim ") +
         (*experiment.expected == Verdict::reversed ? "is " : "") + name_of(*experiment.expected) +
         ".";
}

}  // namespace

const std::vector<Experiment>& experiments() { return table(); }

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
          .measured_here = static_cast<bool>(experiment.measure)};
}

// The verdict and the plot of a table, onto the card and into the folder.
void conclude(const Experiment& experiment, const Table& runs, const std::filesystem::path& out,
              Card& card) {
  card.judgement = experiment.judge(runs);
  card.remark = remark_on(experiment, card.judgement.verdict);
  experiment.draw(runs).save(out / (experiment.name + ".svg"));
}

}  // namespace

Card run_experiment(const Experiment& experiment, const Laboratory& laboratory,
                    const std::filesystem::path& out) {
  Card card = card_of(experiment);
  std::filesystem::create_directories(out);
  if (experiment.measure) {
    const auto start = std::chrono::steady_clock::now();
    const Table runs = experiment.measure(laboratory);
    card.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    card.seeds = static_cast<int>(laboratory.seeds().size());
    card.data = laboratory.data_name();
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
    const Card before = card_from_json(read_file(path));
    card.seconds = before.seconds;
    card.seeds = before.seeds;
    card.data = before.data;
    conclude(experiment, Table::from_csv(read_file(out / (experiment.name + ".csv"))), out, card);
  }
  write_file_atomically(path, to_json(card));
  return card;
}

}  // namespace tapeformer::lab
