#include "lab/report.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer::lab {
namespace {

std::string verdict_of(const Card& card) {
  return card.measured_here ? name_of(card.judgement.verdict) : "not tested here";
}

// A path as Markdown takes it.
std::string target(const std::string& path) {
  return path.find_first_of(" ()") == std::string::npos ? path : "<" + path + ">";
}

std::filesystem::path folder_of(const std::filesystem::path& page) {
  return page.parent_path() / page.stem();
}

std::string card_section(const Card& card, const std::string& files) {
  std::string text = "## " + card.name + "\n\n> " + card.claim + "\n\n";
  const auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) text += std::string("- **") + label + ":** " + value + "\n";
  };
  add("Source", card.source);
  add("Literature", card.literature);
  add("Done here", card.method);
  add("Measured on", card.data);
  add("Replaced", card.replaced);
  add("Rule", card.rule);
  add("Verdict", "**" + verdict_of(card) + "**");
  add("Remark", card.remark);
  const std::string path = files + "/" + card.name;
  const std::string as_json = "[the card as JSON](" + target(path + ".json") + ")\n\n";
  if (!card.measured_here) return text + "\n" + as_json;
  text += "\n| measured | mean +- deviation (runs) |\n|---|---|\n";
  for (const Measured& measured : card.judgement.measured)
    text += "| " + measured.name + " | " + to_text(measured.values) + " |\n";
  return text + "\n[All runs](" + target(path + ".csv") + "), " + as_json + "![" + card.name +
         "](" + target(path + ".svg") + ")\n\n";
}

}  // namespace

std::string report(const std::vector<Card>& cards, const std::string& files,
                   const std::string& about) {
  double seconds = 0;
  int seeds = 0;
  std::set<std::string> data;
  for (const Card& card : cards) {
    seconds += card.seconds;
    seeds = std::max(seeds, card.seeds);
    if (!card.data.empty()) data.insert(card.data);
  }
  std::string text = "# The norm lab's findings\n\n" + about + (about.empty() ? "" : "\n") +
                     "Written by `norm_lab --report`, with " + std::to_string(seeds) +
                     (seeds == 1 ? " seed" : " seeds") + ", on ";
  bool first = true;
  for (const std::string& name : data) {
    text += (first ? "" : ", ") + name;
    first = false;
  }
  text += "; the experiments took " + duration(seconds) +
          " (h:mm:ss or m:ss). A verdict is about the statement as it stands in the table, follows "
          "from the numbers by the rule on its card, and is worth what small models on small texts "
          "are worth.\n\n| statement | verdict | plot |\n|---|---|---|\n";
  for (const Card& card : cards) {
    text += "| " + card.claim + " | [" + verdict_of(card) + "](#" + card.name + ") | ";
    text += card.measured_here
                ? "![" + card.name + "](" + target(files + "/" + card.name + ".svg") + ") |\n"
                : "|\n";
  }
  text += "\n";
  for (const Card& card : cards) text += card_section(card, files);
  text.pop_back();
  return text;
}

void prepare_report(const std::filesystem::path& page) {
  check(page.has_extension(), "report: '", page.string(),
        "' needs a name with an ending, such as findings.md: the plots go into a folder of the "
        "same name without it");
  check(!std::filesystem::is_directory(page), "report: ", page.string(),
        " is a folder; name a file");
  make_folder(folder_of(page));
}

void write_report(const std::vector<Card>& cards, const std::filesystem::path& out,
                  const std::filesystem::path& page) {
  prepare_report(page);
  const std::filesystem::path files = folder_of(page);
  for (const Card& card : cards) {
    for (const char* kind : {".json", ".csv", ".svg"}) {
      if (!card.measured_here && kind != std::string(".json")) continue;
      const std::string name = card.name + kind;
      write_file_atomically(files / name, read_file(out / name));
    }
  }
  const std::filesystem::path about = files / "about.md";
  write_file_atomically(page, report(cards, page.stem().string(),
                                     std::filesystem::exists(about) ? read_file(about) : ""));
}

}  // namespace tapeformer::lab
