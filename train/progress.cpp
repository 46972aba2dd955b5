#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "train/format.h"

namespace tapeformer {
namespace {

constexpr int smallest_bar = 8, largest_bar = 40;

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value && *value) {
      const std::string_view text = value;
      return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
    }
  return false;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

std::string bar(double share, int width, bool utf8, bool color) {
  const int full = std::clamp(static_cast<int>(share * width), 0, width);
  const auto repeat = [](const char* piece, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += piece;
    return text;
  };
  const std::string done = repeat(utf8 ? "━" : "=", full);
  const std::string rest = repeat(utf8 ? (color ? "━" : "─") : "-", width - full);
  return color ? "\x1b[36m" + done + "\x1b[90m" + rest + "\x1b[0m" : done + rest;
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fixed(loss, std::abs(loss) < 100 ? 4 : 1) : shortest(loss);
}

}  // namespace

std::string progress_line(const ProgressState& state, int width, bool utf8, bool color) {
  const double of_steps =
      state.steps > 0 ? static_cast<double>(state.step) / static_cast<double>(state.steps) : 1;
  const double share = std::max(of_steps, state.time_share);
  const std::string steps = std::to_string(state.step) + "/" + std::to_string(state.steps);
  const std::string loss = "loss " + loss_text(state.loss);
  const std::string left = duration(state.seconds_left) + " left";
  const std::string speed = compact(state.tokens_per_second) + " tokens/s";

  // What stays when there is little room: first the steps, then loss, time and speed.
  std::vector<std::string> parts = {steps};
  int used = static_cast<int>(steps.size());
  if (used > width) return "";
  const auto add = [&](const std::string& part) {
    if (used + 2 + static_cast<int>(part.size()) > width) return;
    parts.push_back(part);
    used += 2 + static_cast<int>(part.size());
  };
  add(loss);
  add(left);
  add(speed);
  std::string line = parts[0];
  if (const int room = width - used - 2; room >= smallest_bar)
    line += "  " + bar(share, std::min(room, largest_bar), utf8, color);
  for (size_t i = 1; i < parts.size(); ++i) line += "  " + parts[i];
  return line;
}

Progress::Progress(int64_t steps, int64_t first_step, std::FILE* out)
    : out_(out),
      utf8_(utf8_locale()),
      first_step_(first_step),
      last_printed_(first_step),
      start_(Clock::now()),
      last_drawn_(start_) {
  const char* kind = std::getenv("TERM");
  terminal_ = isatty(fileno(out)) && std::string_view(kind ? kind : "dumb") != "dumb";
  color_ = terminal_ && !is_set("NO_COLOR");
  state_.step = first_step;
  state_.steps = steps;
}

Progress::~Progress() { finish(); }

void Progress::update(int64_t step, double loss, double tokens_per_second,
                      double seconds_to_limit) {
  const Clock::time_point now = Clock::now();
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  state_.step = step;
  state_.loss = loss;
  state_.tokens_per_second = tokens_per_second;
  const int64_t done = std::max<int64_t>(step - first_step_, 1);
  const double elapsed = seconds(now - start_);
  const double limit = std::max(seconds_to_limit, 0.0);
  const double for_steps = elapsed / static_cast<double>(done) *
                           static_cast<double>(std::max<int64_t>(state_.steps - step, 0));
  state_.seconds_left = std::min(for_steps, limit);
  state_.time_share = elapsed / (elapsed + limit);
  const bool last = step >= state_.steps;
  if (terminal_) {
    if (drawn_ && !last && seconds(now - last_drawn_) < 0.1) return;
    last_drawn_ = now;
    draw();
    return;
  }
  const int64_t interval = std::max<int64_t>((state_.steps - first_step_) / 20, 1);
  if (!last && step - last_printed_ < interval && seconds(now - last_drawn_) < 10) return;
  if (step == last_printed_) return;
  last_printed_ = step;
  last_drawn_ = now;
  std::fprintf(out_, "%s\n", progress_line(state_, 100, false, false).c_str());
  std::fflush(out_);
}

void Progress::draw() {
  // One column stays free: a full line would make some terminals wrap. \x1b[K erases the rest.
  const std::string line = progress_line(state_, width() - 1, utf8_, color_);
  std::fprintf(out_, "\r%s\x1b[K", line.c_str());
  std::fflush(out_);
  drawn_ = true;
}

void Progress::note(const std::string& text) {
  const bool redraw = drawn_;
  hide();
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
  if (redraw) draw();
}

void Progress::hide() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  drawn_ = false;
}

void Progress::show() {
  if (terminal_ && !drawn_) draw();
}

void Progress::finish() {
  if (!drawn_) return;
  std::fputc('\n', out_);
  std::fflush(out_);
  drawn_ = false;
}

int Progress::width() const {
  if (const char* text = std::getenv("COLUMNS"))
    if (const int columns = std::atoi(text); columns > 0) return columns;
  winsize size{};
  return ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace tapeformer
