#include "layers/position.h"

#include <cmath>

#include "layers/registry.h"

namespace tapeformer {
namespace {

const Registry<Position>& positions() {
  static const Registry<Position> registry("position", {{"none", Position::none},
                                                        {"learned", Position::learned},
                                                        {"sinusoidal", Position::sinusoidal},
                                                        {"rotary", Position::rotary},
                                                        {"alibi", Position::alibi}});
  return registry;
}

}  // namespace

Position find_position(const std::string& name) { return positions().find(name); }
std::vector<std::string> position_names() { return positions().names(); }

Tensor sinusoidal_positions(int64_t time, int64_t channels) {
  check(channels % 2 == 0, "sinusoidal_positions: needs an even number of channels, got ",
        channels);
  std::vector<float> table;
  table.reserve(time * channels);
  for (int64_t t = 0; t < time; ++t) {
    for (int64_t i = 0; i < channels; i += 2) {
      const double angle = t / std::pow(10000.0, static_cast<double>(i) / channels);
      table.push_back(static_cast<float>(std::sin(angle)));
      table.push_back(static_cast<float>(std::cos(angle)));
    }
  }
  return Tensor::from(table, {time, channels});
}

}  // namespace tapeformer
