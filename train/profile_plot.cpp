// The profile by layer as a plot: how stream, gradients and statistics look along the depth, and
// how they change in training.
#include <algorithm>
#include <cmath>

#include "train/plot.h"

namespace tapeformer {
namespace {

constexpr size_t most_lines = 6;  // as many as a panel has styles

// At most `count` of 0 ... n - 1: the first, the last, and evenly between.
std::vector<size_t> spread(size_t n, size_t count) {
  std::vector<size_t> result;
  if (n <= count) count = n;
  for (size_t i = 0; i < count; ++i)
    result.push_back(count == 1 ? n - 1 : (i * (n - 1) + (count - 1) / 2) / (count - 1));
  return result;
}

// "blocks.3.ffn.up.weight": block 3, kind "ffn.up.weight". Block -1 for what is in no block.
struct Place {
  int64_t block = -1;
  std::string kind;
};

Place place_of(const std::string& name) {
  const std::string prefix = "blocks.";
  if (!name.starts_with(prefix)) return {-1, name};
  const size_t dot = std::min(name.find_first_not_of("0123456789", prefix.size()), name.size());
  if (dot == prefix.size() || name.substr(dot, 1) != ".") return {-1, name};
  return {std::stoll(name.substr(prefix.size(), dot - prefix.size())), name.substr(dot + 1)};
}

// Values of very different size can only be seen by their logarithm.
void choose_scale(Panel& panel) {
  double low = INFINITY, high = 0;
  for (const Line& line : panel.lines)
    for (const double value : line.y)
      if (value > 0 && std::isfinite(value)) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
  if (high > 30 * low) panel.y_scale = Scale::log10;
}

void add(Figure& figure, Panel panel) {
  choose_scale(panel);
  figure.add(std::move(panel));
}

std::string step_label(const Metrics& at) { return "step " + std::to_string(at.step); }

Panel stream_by_depth(const std::vector<const Metrics*>& shown) {
  Panel panel{.title = "Residual stream",
              .x_label = "blocks behind it",
              .y_label = "root mean square",
              .height = 220};
  for (const Metrics* at : shown) {
    Line line{.label = step_label(*at), .y = at->stream_rms, .markers = true};
    for (size_t i = 0; i < line.y.size(); ++i) line.x.push_back(static_cast<double>(i));
    panel.lines.push_back(std::move(line));
  }
  return panel;
}

// One panel for each kind of weight that blocks have.
std::vector<Panel> gradients_by_depth(const std::vector<const Metrics*>& shown) {
  std::vector<Panel> panels;
  for (const Metrics* at : shown)
    for (const NamedValue& entry : at->gradient_norms) {
      const Place place = place_of(entry.name);
      if (place.block < 0) continue;
      const std::string title = "Gradient of " + place.kind;
      auto panel = std::ranges::find(panels, title, &Panel::title);
      if (panel == panels.end())
        panel = panels.insert(panels.end(), {.title = title, .y_label = "norm", .height = 110});
      const std::string label = step_label(*at);
      if (panel->lines.empty() || panel->lines.back().label != label)
        panel->lines.push_back({.label = label, .markers = true});
      panel->lines.back().x.push_back(static_cast<double>(place.block));
      panel->lines.back().y.push_back(entry.value);
    }
  if (!panels.empty()) panels.back().x_label = "block";
  return panels;
}

// One line for each name that `wanted` has, over the steps of all profiles.
template <class F>
Panel over_steps(const std::vector<Metrics>& profiles, std::vector<NamedValue> Metrics::*values,
                 const F& wanted, Panel panel) {
  std::vector<Line> lines;
  for (const Metrics& at : profiles)
    for (const NamedValue& entry : at.*values) {
      if (!wanted(entry.name)) continue;
      auto line = std::ranges::find(lines, entry.name, &Line::label);
      if (line == lines.end())
        line = lines.insert(lines.end(), {.label = entry.name, .markers = profiles.size() <= 60});
      line->x.push_back(static_cast<double>(at.step));
      line->y.push_back(entry.value);
    }
  for (const size_t i : spread(lines.size(), most_lines)) panel.lines.push_back(lines[i]);
  return panel;
}

}  // namespace

void write_profile(const std::filesystem::path& folder, const std::vector<Metrics>& metrics) {
  std::vector<Metrics> profiles;
  for (const Metrics& at : metrics)
    if (!at.stream_rms.empty()) profiles.push_back(at);
  if (profiles.empty()) return;
  std::vector<const Metrics*> shown;
  for (const size_t i : spread(profiles.size(), most_lines)) shown.push_back(&profiles[i]);

  Figure figure{.title = "Profile by layer", .share_x = false};
  add(figure, stream_by_depth(shown));
  for (Panel& panel : gradients_by_depth(shown)) add(figure, std::move(panel));
  Panel outside =
      over_steps(profiles, &Metrics::gradient_norms,
                 [](const std::string& name) { return place_of(name).block < 0; },
                 {.title = "Gradients outside the blocks", .x_label = "step", .y_label = "norm"});
  if (!outside.lines.empty()) add(figure, std::move(outside));
  Panel tid = over_steps(profiles, &Metrics::tid, [](const std::string&) { return true; },
                         {.title = "Running and batch statistics (TID)",
                          .x_label = "step",
                          .y_label = "standard deviations of the batch"});
  if (!tid.lines.empty()) add(figure, std::move(tid));
  figure.save(folder / "profile.svg");
}

}  // namespace tapeformer
