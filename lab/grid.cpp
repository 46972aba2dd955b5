#include "lab/grid.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <sstream>

#include "lab/card.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer::lab {
namespace {

template <class T>
T parse_number(const std::string& axis, const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && stop == text.data() + text.size(), "grid: '", text, "' is no ",
        std::is_integral_v<T> ? "whole number" : "number", " for the axis ", axis);
  if constexpr (std::is_floating_point_v<T>)
    check(std::isfinite(value) && value >= 0, "grid: ", axis,
          " must be finite and not negative, got ", text);
  else
    check(value >= 0, "grid: ", axis, " must not be negative, got ", text);
  return value;
}

// Adds a value to the axis of this name.
void add_value(Grid& grid, const std::string& axis, const std::string& text) {
  if (axis == "norms") {
    find_norm(text);
    grid.norms.push_back(text);
  } else if (axis == "placements") {
    find_placement(text);
    grid.placements.push_back(text);
  } else if (axis == "lr" || axis == "clip") {
    (axis == "lr" ? grid.lr : grid.clip).push_back(parse_number<double>(axis, text));
  } else {
    auto& values = axis == "depth"    ? grid.depth
                   : axis == "warmup" ? grid.warmup
                   : axis == "batch"  ? grid.batch
                                      : grid.steps;
    values.push_back(parse_number<int64_t>(axis, text));
    check(values.back() > 0 || axis == "warmup", "grid: ", axis, " must be positive, got ", text);
  }
}

void clear_axis(Grid& grid, const std::string& axis) {
  if (axis == "norms") return grid.norms.clear();
  if (axis == "placements") return grid.placements.clear();
  if (axis == "depth") return grid.depth.clear();
  if (axis == "warmup") return grid.warmup.clear();
  if (axis == "batch") return grid.batch.clear();
  if (axis == "steps") return grid.steps.clear();
  if (axis == "lr") return grid.lr.clear();
  if (axis == "clip") return grid.clip.clear();
  fail("grid: there is no axis '", axis,
       "'; known are norms, placements, depth, lr, warmup, batch, clip, steps");
}

const std::vector<std::string> grid_columns = {
    "norm", "placement",     "depth",           "lr",  "warmup", "batch", "clip", "steps", "seed",
    "data", "training_loss", "validation_loss", "end", "seconds"};
constexpr size_t setting_columns = 10;

// A run as the first cells of its row; what follows is measured.
using Setting = std::vector<Cell>;

std::vector<Setting> combinations(const Grid& grid, const Laboratory& laboratory) {
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
                                      double(batch), clip, double(steps), double(seed),
                                      laboratory.data_name()});
  return result;
}

bool is_row_of(const std::vector<Cell>& row, const Setting& setting) {
  return std::equal(setting.begin(), setting.end(), row.begin());
}

std::vector<Cell> run(const Setting& s, const Laboratory& laboratory) {
  const auto text = [&](size_t i) { return std::get<std::string>(s[i]); };
  const auto number = [&](size_t i) { return std::get<double>(s[i]); };
  const auto whole = [&](size_t i) { return static_cast<int64_t>(number(i)); };
  const Outcome outcome =
      laboratory.train_on_text({.model = laboratory.reference(whole(2), text(0), text(1)),
                                .batch = whole(5),
                                .steps = whole(7),
                                .warmup = whole(4),
                                .lr = number(3),
                                .clip = number(6),
                                .seed = static_cast<uint64_t>(number(8)),
                                .validation_batches = 40});
  const char* end = outcome.diverged ? "diverged" : outcome.stuck ? "stuck" : "finished";
  std::vector<Cell> row = s;
  row.insert(row.end(),
             {outcome.training_loss, outcome.validation_loss, std::string(end), outcome.seconds});
  return row;
}

Table read_grid(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Table(grid_columns);
  Table table = Table::from_csv(read_file(path));
  check(table.columns() == grid_columns, path,
        " is no table of grid runs of this version; choose another --out");
  return table;
}

}  // namespace

Grid parse_grid(const std::string& text) {
  Grid grid;
  std::string axis;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      axis = word.substr(0, equals);
      word = word.substr(equals + 1);
      clear_axis(grid, axis);
    }
    check(!axis.empty() && !word.empty(),
          "grid: expected AXIS=VALUE,VALUE,... such as norms=layernorm,rmsnorm,depth=4,8; got '",
          text, "'");
    add_value(grid, axis, word);
  }
  check(!axis.empty(), "grid: names no axis; for example norms=layernorm,rmsnorm,depth=4,8");
  return grid;
}

Table run_grid(const Grid& grid, const Laboratory& laboratory, const std::filesystem::path& out) {
  const std::filesystem::path path = out / "grid.csv";
  std::filesystem::create_directories(out);
  const FolderLock lock(out);
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
    std::vector<Cell> row = run(missing[i], laboratory);
    const std::lock_guard guard(mutex);
    laboratory.log(to_text(row[0]) + " " + to_text(row[1]) + ", depth " + to_text(row[2]) +
                   ", lr " + to_text(row[3]) + ", seed " + to_text(row[8]) + ": loss " +
                   fixed(std::get<double>(row[11]), 4) + " (" + to_text(row[12]) + ")");
    stored.add(std::move(row));
    write_file_atomically(path, stored.csv());
  });
  Table result(grid_columns);
  for (const Setting& setting : all) result.add(*find(setting));
  return result;
}

std::string grid_summary(const Table& runs) {
  // Only the axes that vary are shown, and always norm and placement.
  std::vector<size_t> shown = {0, 1};
  for (size_t i = 2; i < setting_columns - 2; ++i)
    if (runs.distinct(runs.columns()[i]).size() > 1) shown.push_back(i);
  const auto padded = [](std::string text, size_t width) {
    text.resize(std::max(text.size() + 1, width), ' ');
    return text;
  };
  std::string result;
  for (const size_t i : shown) result += padded(runs.columns()[i], i < 2 ? 20 : 10);
  result += "validation loss      runs\n";
  std::vector<std::vector<Cell>> done;
  for (const auto& row : runs.rows()) {
    const std::vector<Cell> combination(row.begin(), row.begin() + setting_columns - 2);
    if (std::ranges::find(done, combination) != done.end()) continue;
    done.push_back(combination);
    std::vector<double> losses;
    int stuck = 0, diverged = 0, count = 0;
    for (const auto& other : runs.rows()) {
      if (!std::equal(combination.begin(), combination.end(), other.begin())) continue;
      const std::string end = to_text(other[12]);
      ++count;
      stuck += end == "stuck";
      diverged += end == "diverged";
      if (end == "finished") losses.push_back(std::get<double>(other[11]));
    }
    for (const size_t i : shown) result += padded(to_text(row[i]), i < 2 ? 20 : 10);
    result += padded(to_text(losses), 21) + std::to_string(count);
    if (stuck) result += ", " + std::to_string(stuck) + " stuck";
    if (diverged) result += ", " + std::to_string(diverged) + " diverged";
    result += "\n";
  }
  return result;
}

}  // namespace tapeformer::lab
