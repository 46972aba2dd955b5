#include "lab/main.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/threads.h"
#include "lab/experiment.h"
#include "lab/grid.h"
#include "lab/report.h"
#include "layers/norm.h"
#include "train/files.h"
#include "train/number_option.h"
#include "train/option_failure.h"

namespace tapeformer::lab {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> names;
  bool all = false, list = false, again = false, quick = false;
  int seeds = 0, threads = 0;
  std::string data, lines, src, tgt, val_src, val_tgt, out, grid, replace, report;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("NAME", o.names, "Experiments to run (see --list)");
  app.add_flag("--list", o.list, "List the experiments");
  app.add_flag("--all", o.all, "Run all experiments");
  app.add_option("--grid", o.grid,
                 "Run a product of settings instead: norms=...,placements=...,depth=...,lr=...,"
                 "warmup=...,batch=...,clip=...,steps=...; goes on where it stopped");
  app.add_option("--replace", o.replace,
                 "NAME=OTHER: run the experiments with the norm OTHER, one of your own or another, "
                 "in the place of NAME, such as batchnorm=powernorm; the cards say so");
  app.add_flag("--quick", o.quick, "Small sizes, one seed: a look, not a finding");
  app.add_option("--seeds", o.seeds, "Seeds for each setting [3, or 1 with --quick]")
      ->check(number_objection<int>);
  app.add_option("--data", o.data, "Plain text to train on; without it, generated stories");
  app.add_option("--lines", o.lines,
                 "Plain text, an example on each line (names, sentences); without it, generated");
  app.add_option("--src", o.src,
                 "Sentences to translate, one a line; without them, an embedded language pair");
  app.add_option("--tgt", o.tgt, "Their translations, line by line");
  app.add_option("--val-src", o.val_src,
                 "Sentences to validate on; without them, the last twentieth of --src");
  app.add_option("--val-tgt", o.val_tgt, "Their translations");
  app.add_option(
      "--out", o.out,
      "Folder for the tables, cards and plots [lab_runs/full, /quick, /grid or /replaced]");
  app.add_flag("--again", o.again,
               "Measure nothing: judge and draw again from the CSV files in --out");
  app.add_option("--report", o.report, "Write a page of Markdown with the cards of this run");
  app.add_option("--threads", o.threads, "CPU threads; 0: all that this process may use")
      ->check(number_objection<int>);
}

// "batchnorm=powernorm": from now on what is called batchnorm is powernorm. In words, for the
// cards, on which claims, numbers and plots keep the name.
std::string replace(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string other = equals == text.npos ? "" : text.substr(equals + 1);
  check(!name.empty() && !other.empty() && name != other,
        "--replace: expected NAME=OTHER, two norms such as batchnorm=powernorm; got '", text, "'");
  replace_norm(name, find_norm(other));
  return name + " stands for " + other + " in the claim, the numbers and the plot";
}

Laboratory make_laboratory(const Options& o) {
  const int seeds = o.seeds ? o.seeds : o.quick ? 1 : 3;
  return Laboratory(
      {.quick = o.quick,
       .seeds = seeds,
       .data = o.data,
       .lines = o.lines,
       .src = o.src,
       .tgt = o.tgt,
       .val_src = o.val_src,
       .val_tgt = o.val_tgt,
       .replaced = o.replace.empty() ? "" : replace(o.replace),
       .log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }});
}

void list_experiments() {
  for (const Experiment& experiment : experiments())
    std::printf("%-22s %s%s\n", experiment.name.c_str(), experiment.claim.c_str(),
                experiment.measure ? "" : " (card only)");
}

std::vector<const Experiment*> chosen(const Options& o) {
  std::vector<const Experiment*> result;
  const auto add = [&](const Experiment& experiment) {
    if (std::ranges::find(result, &experiment) == result.end()) result.push_back(&experiment);
  };
  for (const std::string& name : o.names) add(find_experiment(name));
  if (o.all)
    for (const Experiment& experiment : experiments()) add(experiment);
  return result;
}

void run_experiments(const Options& o) {
  const auto list = chosen(o);
  std::vector<Card> cards;
  std::optional<Laboratory> laboratory;
  if (!o.again) laboratory = make_laboratory(o);
  // What cannot be written is better known now than after hours.
  const FolderLock lock(o.out);
  remove_stray_temporaries(o.out);
  if (!o.report.empty()) prepare_report(o.report);
  for (const Experiment* experiment : list) {
    cards.push_back(o.again ? judge_again(*experiment, o.out)
                            : run_experiment(*experiment, *laboratory, o.out));
    std::printf("%s\n", to_text(cards.back()).c_str());
    std::fflush(stdout);
  }
  if (!o.report.empty()) write_report(cards, o.out, o.report);
  std::printf("%-22s %s\n", "experiment", "verdict");
  for (const Card& card : cards)
    std::printf("%-22s %s\n", card.name.c_str(),
                card.measured_here ? name_of(card.judgement.verdict) : "(card only)");
}

// An option that changes nothing is a mistake.
void check_options(const CLI::App& app, const Options& o) {
  const auto given = [&](auto... names) { return (app.count(names) + ...) > 0; };
  check(!given("--seeds") || o.seeds > 0, "--seeds must be positive, got ", o.seeds);
  check(!given("--list") || !given("NAME", "--all", "--grid", "--again", "--replace", "--report"),
        "--list runs nothing; leave it out to run experiments");
  check(!given("--grid") || !given("NAME", "--all", "--again", "--lines", "--replace", "--report",
                                   "--src", "--tgt", "--val-src", "--val-tgt"),
        "--grid goes with --data, --quick, --seeds, --out and --threads only");
  check(!given("--again") || !given("--data", "--lines", "--src", "--tgt", "--val-src", "--val-tgt",
                                    "--seeds", "--replace"),
        "--again measures nothing, so it goes without texts, --seeds and --replace");
  for (const char* name : {"--data", "--lines", "--src", "--tgt", "--val-src", "--val-tgt", "--out",
                           "--replace", "--report"})
    check(!given(name) || !app.get_option(name)->as<std::string>().empty(), name,
          ": the name is empty");
}

int run(const CLI::App& app, Options o) {
  check_options(app, o);
  check(o.threads >= 0 && o.threads <= 1024, "--threads must lie in 0 ... 1024, got ", o.threads);
  if (o.threads > 0) set_num_threads(o.threads);
  if (o.out.empty())
    o.out = app.count("--grid")  ? "lab_runs/grid"
            : !o.replace.empty() ? "lab_runs/replaced"
            : o.quick            ? "lab_runs/quick"
                                 : "lab_runs/full";
  if (o.list) {
    list_experiments();
  } else if (app.count("--grid")) {
    const Table runs = run_grid(parse_grid(o.grid), make_laboratory(o), o.out);
    std::printf("%s", grid_summary(runs).c_str());
  } else if (o.names.empty() && !o.all) {
    std::printf("%s", app.help().c_str());
    list_experiments();
    return 1;
  } else {
    run_experiments(o);
  }
  return 0;
}

}  // namespace

int norm_lab_main(int argc, char** argv) {
  Options options;
  CLI::App app("Turns claims about norms into experiments, and experiments into verdicts.");
  app.failure_message(option_failure);
  declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(app, options);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "norm_lab: out of memory; a smaller text, batch or depth needs less\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "norm_lab: %s\n", error.what());
    return 1;
  }
}

}  // namespace tapeformer::lab
