// A progress bar with loss, speed and time left; plain lines now and then when the output is no
// terminal. For programs: the library itself never prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace tapeformer {

/// What the bar shows.
struct ProgressState {
  int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_second = 0, seconds_left = 0;
  double time_share = 0;  ///< of the time that the run may take; 0: no limit
};

/// The bar as text of at most `width` columns; parts that do not fit are left out.
std::string progress_line(const ProgressState& state, int width, bool utf8, bool color);

class Progress {
 public:
  /// For a run from `first_step` to `steps`. On a terminal it draws a bar (colours unless NO_COLOR
  /// is set); elsewhere it prints about twenty lines a run, and one whenever ten seconds pass.
  explicit Progress(int64_t steps, int64_t first_step = 0, std::FILE* out = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `step` updates are done, and the run ends within so many seconds even if others are left.
  void update(int64_t step, double loss, double tokens_per_second,
              double seconds_to_limit = std::numeric_limits<double>::infinity());
  /// Prints text on lines of its own, above the bar.
  void note(const std::string& text);
  /// Removes the bar from the screen, so that something else can be printed; the next update or
  /// show() brings it back.
  void hide();
  void show();
  /// Leaves the bar as it is and ends its line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  int width() const;

  std::FILE* out_;
  bool terminal_, utf8_, color_;
  bool drawn_ = false;
  int64_t first_step_, last_printed_;
  ProgressState state_;
  Clock::time_point start_, last_drawn_;
};

}  // namespace tapeformer
