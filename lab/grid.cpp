#include "lab/grid.h"

#include <algorithm>
#include <mutex>

#include "lab/card.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer::lab {
namespace {

const std::vector<std::string> grid_columns = {
    "norm", "placement",     "depth",           "lr",  "warmup", "batch", "clip", "steps", "seed",
    "data", "training_loss", "validation_loss", "end", "seconds"};
// Their places.
enum : size_t {
  at_norm,
  at_placement,
  at_depth,
  at_lr,
  at_warmup,
  at_batch,
  at_clip,
  at_steps,
  at_seed,
  at_data,
  at_training_loss,
  at_validation_loss,
  at_end,
  at_seconds
};
// Runs that differ in seed and text alone are one combination.
constexpr size_t combination_columns = at_seed;

// A run as the first cells of its row; what follows is measured.
using Setting = std::vector<Cell>;

std::vector<Setting> combinations(const Grid& grid, const Laboratory& laboratory) {
  const std::string text = laboratory.text_identity();
  std::vector<Setting> result;
  for (const auto& norm : grid.norms)
    for (const auto& placement : grid.placements)
      for (const int64_t depth : grid.depth)
        for (const double lr : grid.lr)
          for (const int64_t warmup : grid.warmup)
            for (const int64_t batch : grid.batch)
              for (const double clip : grid.clip)
                for (const int64_t steps : grid.steps)
                  for (const uint64_t seed : laboratory.seeds())
                    result.push_back({norm, placement, double(depth), lr, double(warmup),
                                      double(batch), clip, double(steps), double(seed), text});
  return result;
}

bool is_row_of(const std::vector<Cell>& row, const Setting& setting) {
  return std::equal(setting.begin(), setting.end(), row.begin());
}

std::vector<Cell> run(const Setting& s, const Laboratory& laboratory) {
  const auto text = [&](size_t i) { return std::get<std::string>(s[i]); };
  const auto number = [&](size_t i) { return std::get<double>(s[i]); };
  const auto whole = [&](size_t i) { return static_cast<int64_t>(number(i)); };
  const Outcome outcome = laboratory.train_on_text(
      {.model = laboratory.reference(whole(at_depth), text(at_norm), text(at_placement)),
       .batch = whole(at_batch),
       .steps = whole(at_steps),
       .warmup = whole(at_warmup),
       .lr = number(at_lr),
       .clip = number(at_clip),
       .seed = static_cast<uint64_t>(number(at_seed)),
       .validation_batches = 40});
  const char* end = outcome.diverged ? "diverged" : outcome.stuck ? "stuck" : "finished";
  std::vector<Cell> row = s;
  row.insert(row.end(),
             {outcome.training_loss, outcome.validation_loss, std::string(end), outcome.seconds});
  return row;
}

// Text and numbers where a run has them, and an end that a run can have.
bool is_run(const std::vector<Cell>& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const bool text = i == at_norm || i == at_placement || i == at_data || i == at_end;
    if (std::holds_alternative<std::string>(row[i]) != text) return false;
  }
  const auto& end = std::get<std::string>(row[at_end]);
  return end == "finished" || end == "stuck" || end == "diverged";
}

Table read_grid(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Table(grid_columns);
  const Table table = read_table(path);
  check(table.columns() == grid_columns && std::ranges::all_of(table.rows(), is_run), path.string(),
        " is no table of grid runs of this version; choose another --out");
  return table;
}

}  // namespace

Table run_grid(const Grid& grid, const Laboratory& laboratory, const std::filesystem::path& out) {
  const std::filesystem::path path = out / "grid.csv";
  const FolderLock lock(out);
  remove_stray_temporaries(out);
  Table stored = read_grid(path);
  const std::vector<Setting> all = combinations(grid, laboratory);
  const auto find = [&](const Setting& setting) {
    return std::ranges::find_if(stored.rows(),
                                [&](const auto& row) { return is_row_of(row, setting); });
  };
  std::vector<Setting> missing;
  for (const Setting& setting : all)
    if (find(setting) == stored.rows().end()) missing.push_back(setting);
  laboratory.log(std::to_string(all.size() - missing.size()) + " of " + std::to_string(all.size()) +
                 " runs are done already");
  std::mutex mutex;
  laboratory.for_each(static_cast<int64_t>(missing.size()), [&](int64_t i) {
    const auto cell = [&](size_t at) { return to_text(missing[i][at]); };
    const std::string name = cell(at_norm) + " " + cell(at_placement) + ", depth " +
                             cell(at_depth) + ", lr " + cell(at_lr) + ", seed " + cell(at_seed);
    laboratory.log(name + " ...");
    std::vector<Cell> row = run(missing[i], laboratory);
    const std::lock_guard guard(mutex);
    laboratory.log(name + ": loss " + fixed(std::get<double>(row[at_validation_loss]), 4) + " (" +
                   to_text(row[at_end]) + ")");
    stored.add(std::move(row));
    write_file_atomically(path, stored.csv());
  });
  Table result(grid_columns);
  for (const Setting& setting : all) result.add(*find(setting));
  return result;
}

std::string grid_summary(const Table& runs) {
  // Only the axes that vary are shown, and always norm and placement.
  std::vector<size_t> shown = {at_norm, at_placement};
  for (size_t i = at_depth; i < combination_columns; ++i)
    if (runs.distinct(runs.columns()[i]).size() > 1) shown.push_back(i);
  const auto padded = [](std::string text, size_t width) {
    text.resize(std::max(text.size() + 1, width), ' ');
    return text;
  };
  const auto width_of = [](size_t column) { return column <= at_placement ? 20 : 10; };
  std::string result;
  for (const size_t i : shown) result += padded(runs.columns()[i], width_of(i));
  result += "validation loss      runs\n";
  std::vector<std::vector<Cell>> done;
  for (const auto& row : runs.rows()) {
    const std::vector<Cell> combination(row.begin(), row.begin() + combination_columns);
    if (std::ranges::find(done, combination) != done.end()) continue;
    done.push_back(combination);
    std::vector<double> losses;
    int stuck = 0, diverged = 0, count = 0;
    for (const auto& other : runs.rows()) {
      if (!std::equal(combination.begin(), combination.end(), other.begin())) continue;
      const std::string end = to_text(other[at_end]);
      ++count;
      stuck += end == "stuck";
      diverged += end == "diverged";
      if (end == "finished") losses.push_back(std::get<double>(other[at_validation_loss]));
    }
    for (const size_t i : shown) result += padded(to_text(row[i]), width_of(i));
    result += padded(to_text(losses), 21) + std::to_string(count);
    if (stuck) result += ", " + std::to_string(stuck) + " stuck";
    if (diverged) result += ", " + std::to_string(diverged) + " diverged";
    result += "\n";
  }
  return result;
}

}  // namespace tapeformer::lab
