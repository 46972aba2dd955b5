#include "lab/main.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "core/threads.h"
#include "lab/experiment.h"
#include "lab/grid.h"
#include "lab/report.h"
#include "train/files.h"

namespace tapeformer::lab {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> names;
  bool all = false, list = false, again = false, quick = false;
  int seeds = 0, threads = 0;
  std::string data, lines, out, grid, report;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("NAME", o.names, "Experiments to run (see --list)");
  app.add_flag("--list", o.list, "List the experiments");
  app.add_flag("--all", o.all, "Run all experiments");
  app.add_option("--grid", o.grid,
                 "Run a product of settings instead: norms=...,placements=...,depth=...,lr=...,"
                 "warmup=...,batch=...,clip=...,steps=...; goes on where it stopped");
  app.add_flag("--quick", o.quick, "Small sizes, one seed: a look, not a finding");
  app.add_option("--seeds", o.seeds, "Seeds for each setting [3, or 1 with --quick]");
  app.add_option("--data", o.data, "Text to train on; without it, generated stories");
  app.add_option("--lines", o.lines,
                 "Text with an example on each line (names, sentences); without it, generated");
  app.add_option("--out", o.out,
                 "Folder for the tables, cards and plots [lab_runs/full, /quick or /grid]");
  app.add_flag("--again", o.again,
               "Measure nothing: judge and draw again from the CSV files in --out");
  app.add_option("--report", o.report, "Write a page of Markdown with the cards of this run");
  app.add_option("--threads", o.threads, "CPU threads; 0: all that this process may use");
}

Laboratory make_laboratory(const Options& o) {
  const int seeds = o.seeds ? o.seeds : o.quick ? 1 : 3;
  return Laboratory(
      {.quick = o.quick,
       .seeds = seeds,
       .data = o.data,
       .lines = o.lines,
       .log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }});
}

void list_experiments() {
  for (const Experiment& experiment : experiments())
    std::printf("%-22s %s%s\n", experiment.name.c_str(), experiment.claim.c_str(),
                experiment.measure ? "" : " (card only)");
}

std::vector<const Experiment*> chosen(const Options& o) {
  std::vector<const Experiment*> result;
  for (const std::string& name : o.names) result.push_back(&find_experiment(name));
  if (o.all)
    for (const Experiment& experiment : experiments()) result.push_back(&experiment);
  return result;
}

void run_experiments(const Options& o) {
  const auto list = chosen(o);
  std::vector<Card> cards;
  std::optional<Laboratory> laboratory;
  if (!o.again) laboratory = make_laboratory(o);
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

int run(const CLI::App& app, Options o) {
  check(o.threads >= 0 && o.threads <= 1024, "--threads must lie in 0 ... 1024, got ", o.threads);
  if (o.threads > 0) set_num_threads(o.threads);
  check(o.seeds >= 0, "--seeds must be positive, got ", o.seeds);
  if (o.out.empty())
    o.out = !o.grid.empty() ? "lab_runs/grid" : o.quick ? "lab_runs/quick" : "lab_runs/full";
  if (o.list) {
    list_experiments();
  } else if (!o.grid.empty()) {
    check(o.names.empty() && !o.all && !o.again && o.report.empty(),
          "--grid goes with --data, --seeds, --out and --threads only");
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
  declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(app, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "norm_lab: %s\n", error.what());
    return 1;
  }
}

}  // namespace tapeformer::lab
