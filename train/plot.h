// Line plots as SVG files, which every browser shows and no library is needed for.
//
//   Figure figure;
//   Panel& panel = figure.add({.title = "Loss", .x_label = "step", .y_label = "nats per token"});
//   panel.lines.push_back({.label = "validation", .x = steps, .y = losses, .markers = true});
//   figure.save("loss.svg");
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/metrics.h"

namespace tapeformer {

/// Points joined by a line; a value that is not finite (or not positive, on a logarithmic axis)
/// leaves a gap. Without a label the line stays out of the legend.
struct Line {
  std::string label{};
  std::vector<double> x{}, y{};
  int style = -1;        ///< colour and dashes, 0 ... 5; -1: one that the panel does not use yet
  bool markers = false;  ///< marks the points
  bool faint = false;    ///< thin and pale: raw values behind their mean
};

/// A horizontal line across a panel.
struct Level {
  std::string label{};
  double y = 0;
};

enum class Scale { linear, log10 };

struct Panel {
  std::string title{}, x_label{}, y_label{};  // labels with their units
  Scale y_scale = Scale::linear;
  std::vector<Line> lines{};
  std::vector<Level> levels{};
  double height = 200;  // of the plotting area
};

/// Panels one below the other.
struct Figure {
  std::string title{};
  double width = 820;
  bool share_x = true;  // all panels show the same range of x
  std::vector<Panel> panels{};

  /// The reference holds until the next add().
  Panel& add(Panel panel) { return panels.emplace_back(std::move(panel)); }
  std::string svg() const;
  void save(const std::filesystem::path& path) const;
};

/// Round numbers (1, 2 or 5 times a power of ten) that divide [low, high] into about `count` parts
/// (Heckbert 1990, "Nice numbers for graph labels").
std::vector<double> nice_ticks(double low, double high, int count);

/// Training and validation loss, learning rate and gradient norm over the steps, as
/// folder/curves.svg. `perfect_loss` is the entropy of the source, where it is known.
void write_curves(const std::filesystem::path& folder, const std::vector<Metrics>& metrics,
                  std::optional<double> perfect_loss = std::nullopt);
/// What the profiles among the metrics hold (profile.h), as folder/profile.svg; nothing without
/// one. The residual stream and the gradients along the depth, at up to six steps; gradients
/// outside the blocks and TID over the steps, of up to six weights and norms.
void write_profile(const std::filesystem::path& folder, const std::vector<Metrics>& metrics);

}  // namespace tapeformer
