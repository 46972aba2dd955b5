// The curves of a training run, as every run leaves them beside its checkpoint.
#include <algorithm>
#include <cmath>

#include "train/format.h"
#include "train/plot.h"

namespace tapeformer {
namespace {

// The mean of each value and its neighbours, up to `reach` on either side; near the ends as many as
// there are on both. Values that are not finite stay, and count for no neighbour.
std::vector<double> running_mean(const std::vector<double>& values, size_t reach) {
  std::vector<double> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t span = std::min({reach, i, values.size() - 1 - i});
    double sum = 0;
    int count = 0;
    for (size_t j = i - span; j <= i + span; ++j)
      if (std::isfinite(values[j])) {
        sum += values[j];
        ++count;
      }
    result[i] = std::isfinite(values[i]) ? sum / count : values[i];
  }
  return result;
}

Line line_of(const std::vector<Metrics>& metrics, std::optional<double> Metrics::*field) {
  Line line;
  for (const Metrics& at : metrics)
    if (at.*field) {
      line.x.push_back(static_cast<double>(at.step));
      line.y.push_back(*(at.*field));
    }
  return line;
}

// A noisy line: pale, with its running mean in front.
void add_with_mean(Panel& panel, Line line, const std::string& label) {
  constexpr size_t enough = 100, windows = 80;
  line.style = 0;
  line.label = label;
  if (line.y.size() >= enough) {
    Line mean = line;
    mean.y = running_mean(line.y, line.y.size() / windows / 2 + 1);
    mean.label += " (running mean)";
    line.faint = true;
    line.label.clear();
    panel.lines.push_back(std::move(line));
    panel.lines.push_back(std::move(mean));
  } else if (!line.y.empty()) {
    panel.lines.push_back(std::move(line));
  }
}

}  // namespace

void write_curves(const std::filesystem::path& folder, const std::vector<Metrics>& metrics,
                  std::optional<double> perfect_loss) {
  Figure figure;
  Panel loss{.title = "Loss", .y_label = "nats per token", .height = 300};
  add_with_mean(loss, line_of(metrics, &Metrics::train_loss), "training");
  if (Line line = line_of(metrics, &Metrics::val_loss); !line.y.empty()) {
    line.label = "validation (last " + fixed(line.y.back(), 4) + ")";
    line.style = 1;
    line.markers = line.y.size() <= 60;
    loss.lines.push_back(std::move(line));
  }
  if (perfect_loss)
    loss.levels.push_back({"entropy of the source " + fixed(*perfect_loss, 4), *perfect_loss});
  figure.add(std::move(loss));

  if (Line line = line_of(metrics, &Metrics::val_bleu); !line.y.empty()) {
    Panel bleu{.title = "BLEU", .y_label = "BLEU", .height = 200};
    line.label = "validation (last " + fixed(line.y.back(), 2) + ")";
    line.style = 1;
    line.markers = line.y.size() <= 60;
    bleu.lines.push_back(std::move(line));
    figure.add(std::move(bleu));
  }

  Panel rate{.title = "Learning rate", .y_label = "rate", .height = 120};
  rate.lines.push_back(line_of(metrics, &Metrics::lr));
  figure.add(std::move(rate));

  Panel norm{.title = "Gradient norm", .x_label = "step", .y_label = "norm", .height = 120};
  const Line line = line_of(metrics, &Metrics::grad_norm);
  // Norms of very different size can only be seen by their logarithm.
  double low = INFINITY, high = 0;
  for (const double value : line.y)
    if (value > 0 && std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  if (high > 30 * low) norm.y_scale = Scale::log10;
  add_with_mean(norm, line, "before clipping");
  figure.add(std::move(norm));
  figure.save(folder / "curves.svg");
}

}  // namespace tapeformer
