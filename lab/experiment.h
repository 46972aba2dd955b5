// An experiment: a claim about norms, a way to measure it, and a rule that turns the numbers into a
// verdict. The file of one (lab/experiments/) can be copied to test a claim of one's own.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/card.h"
#include "lab/laboratory.h"
#include "lab/table.h"
#include "train/plot.h"

namespace tapeformer::lab {

struct Experiment {
  std::string name{};                 ///< of its files and on the command line: "leak"
  std::string claim{};                ///< the statement as people say it
  std::string source{};               ///< where it comes from: a paper, or "said of ..."
  std::string literature{};           ///< what the literature says, with arXiv numbers
  std::optional<Verdict> expected{};  ///< the verdict of the literature, where it has one
  std::string method{};               ///< what is done here
  std::string rule{};                 ///< in words, what judge() does
  Data data = Data::text;             ///< what measure() takes from the laboratory
  /// Runs it: one row for every run. Undefined for a claim that no experiment here can decide.
  std::function<Table(const Laboratory&)> measure{};
  /// From the table alone.
  std::function<Judgement(const Table&)> judge{};
  std::function<Figure(const Table&)> draw{};
};

/// Makes an experiment available by name. Throws when the name is taken, or where it measures but
/// cannot judge and draw. At the start of a program: not while other threads look one up.
void register_experiment(Experiment experiment);
/// Those of the lab in their order, then registered ones. References stay valid.
const std::deque<Experiment>& experiments();
/// Throws for an unknown name, listing the known.
const Experiment& find_experiment(const std::string& name);

/// Measures, judges and writes OUT/NAME.csv, .svg and .json (the card, last). For a claim without
/// experiment only the card.
Card run_experiment(const Experiment& experiment, const Laboratory& laboratory,
                    const std::filesystem::path& out);

/// Judges and draws again from OUT/NAME.csv, keeping what OUT/NAME.json says about the run. Throws
/// where there was none.
Card judge_again(const Experiment& experiment, const std::filesystem::path& out);

}  // namespace tapeformer::lab
