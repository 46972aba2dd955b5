#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "core/check.h"
#include "lab/grid.h"
#include "layers/norm.h"
#include "layers/residual.h"

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
    check(value >= 0 && value <= 1'000'000'000, "grid: ", axis,
          " must lie in 0 ... 1000000000, got ", text);
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

template <class T>
void check_distinct(const char* axis, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    check(std::find(values.begin(), values.begin() + i, values[i]) == values.begin() + i,
          "grid: the axis ", axis, " has the value ", values[i], " twice");
}

void check_axes(const Grid& grid) {
  check_distinct("norms", grid.norms);
  check_distinct("placements", grid.placements);
  check_distinct("depth", grid.depth);
  check_distinct("lr", grid.lr);
  check_distinct("warmup", grid.warmup);
  check_distinct("batch", grid.batch);
  check_distinct("clip", grid.clip);
  check_distinct("steps", grid.steps);
  double runs = 1;
  for (const size_t count :
       {grid.norms.size(), grid.placements.size(), grid.depth.size(), grid.lr.size(),
        grid.warmup.size(), grid.batch.size(), grid.clip.size(), grid.steps.size()})
    runs *= static_cast<double>(count);
  check(runs <= 100'000, "grid: has ", runs, " combinations, more than 100000");
}

}  // namespace

Grid parse_grid(const std::string& text) {
  Grid grid;
  std::string axis;
  std::set<std::string> axes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      axis = word.substr(0, equals);
      word = word.substr(equals + 1);
      clear_axis(grid, axis);
      check(axes.insert(axis).second, "grid: the axis ", axis, " is named twice");
    }
    check(!axis.empty() && !word.empty(),
          "grid: expected AXIS=VALUE,VALUE,... such as norms=layernorm,rmsnorm,depth=4,8; got '",
          text, "'");
    add_value(grid, axis, word);
  }
  check(!axis.empty(), "grid: names no axis; for example norms=layernorm,rmsnorm,depth=4,8");
  check_axes(grid);
  return grid;
}

}  // namespace tapeformer::lab
