// The progress display: it fits its terminal, and leaves plain lines elsewhere.
#include "train/progress.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/catch.h"
#include "tests/locale_with_comma.h"

using namespace tapeformer;

namespace {

// How many columns a line takes: UTF-8 sequences count once, escape sequences not at all.
int columns(const std::string& line) {
  int result = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (i < line.size() && !std::isalpha(static_cast<unsigned char>(line[i]))) ++i;
    } else if ((line[i] & 0xc0) != 0x80) {
      ++result;
    }
  }
  return result;
}

// An environment variable for the time of a test; null removes it.
struct Variable {
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) old_ = old, had_ = true;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  const char* name_;
  std::string old_;
  bool had_ = false;
};

// A terminal of the given width, and what was written to it.
struct Terminal {
  explicit Terminal(unsigned short width) {
    master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0);
    REQUIRE(grantpt(master) == 0);
    REQUIRE(unlockpt(master) == 0);
    const winsize size{24, width, 0, 0};
    ioctl(master, TIOCSWINSZ, &size);
    out = std::fopen(ptsname(master), "w");
    REQUIRE(out != nullptr);
    fcntl(master, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    std::fclose(out);
    close(master);
  }
  std::string text() const {
    std::string result;
    char piece[4096];
    for (ssize_t n; (n = read(master, piece, sizeof piece)) > 0;)
      result.append(piece, static_cast<size_t>(n));
    return result;
  }
  int master;
  std::FILE* out;
};

std::string content(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  return text;
}

const ProgressState state{
    .step = 1200, .steps = 2000, .loss = 1.85123, .tokens_per_second = 151800, .seconds_left = 32};

}  // namespace

TEST_CASE("progress_line_tells_step_loss_speed_and_time_left") {
  const LocaleWithComma locale;
  CHECK(progress_line(state, 80, false, false) ==
        "1200/2000  ==================------------  loss 1.8512  0:32 left  152k tokens/s");
}

TEST_CASE("progress_line_fits_every_width") {
  for (int width = 9; width < 200; ++width)
    for (const bool utf8 : {false, true})
      for (const bool color : {false, true})
        CHECK(columns(progress_line(state, width, utf8, color)) <= width);
  CHECK(progress_line(state, 8, false, false) == "");
  CHECK(progress_line(state, 40, false, false) == "1200/2000  loss 1.8512  0:32 left");
  CHECK(progress_line(state, 9, false, false) == "1200/2000");
}

TEST_CASE("progress_shows_the_time_limit_where_it_comes_before_the_last_step") {
  ProgressState hurried = state;
  hurried.time_share = 0.9;
  CHECK_THAT(progress_line(hurried, 80, false, false),
             ContainsSubstring("  ===========================---  "));
  hurried.time_share = 0.1;  // the steps are further
  CHECK(progress_line(hurried, 80, false, false) == progress_line(state, 80, false, false));

  const Variable kind("TERM", "xterm"), columns_variable("COLUMNS", nullptr);
  const Variable no_color("NO_COLOR", "1"), language("LC_ALL", "C");
  const auto shown = [](int64_t steps, double seconds_to_limit) {
    const Terminal terminal(80);
    Progress progress(steps, 0, terminal.out);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    progress.update(1, 2.5, 1000, seconds_to_limit);
    return terminal.text();
  };
  constexpr int64_t many = 1'000'000'000;  // would take 2 million seconds
  CHECK_THAT(shown(many, 125), ContainsSubstring("  2:05 left"));
  CHECK_THAT(shown(many, INFINITY), !ContainsSubstring("  2:05 left") && ContainsSubstring(":"));
  CHECK_THAT(shown(many, 0), ContainsSubstring("  0:00 left") && ContainsSubstring("  =====") &&
                                 !ContainsSubstring("-"));
  CHECK_THAT(shown(1, 125), ContainsSubstring("  0:00 left"));
}

TEST_CASE("progress_line_bears_every_value") {
  ProgressState odd{.loss = NAN, .tokens_per_second = INFINITY, .seconds_left = NAN};
  CHECK_THAT(progress_line(odd, 120, false, false),
             ContainsSubstring("0/0") && ContainsSubstring("loss nan") &&
                 ContainsSubstring("inf tokens/s") && ContainsSubstring("? left"));
  odd.step = 5;
  odd.steps = 3;
  odd.loss = 1e9;
  CHECK(columns(progress_line(odd, 60, true, true)) <= 60);
}

TEST_CASE("progress_prints_plain_lines_where_there_is_no_terminal") {
  const Variable columns_variable("COLUMNS", nullptr);
  std::FILE* file = std::tmpfile();
  {
    Progress progress(2000, 0, file);
    for (int step = 1; step <= 2000; ++step) progress.update(step, 2.5, 1000);
    progress.note("a sample");
    progress.hide();
    progress.show();
    progress.finish();
  }
  const std::string text = content(file);
  std::fclose(file);
  CHECK(std::count(text.begin(), text.end(), '\n') == 21);
  CHECK(text.find('\r') == text.npos);
  CHECK(text.find('\x1b') == text.npos);
  CHECK_THAT(text, ContainsSubstring("100/2000  ") && ContainsSubstring("\n2000/2000  ") &&
                       ContainsSubstring("\na sample\n"));
}

TEST_CASE("progress_of_a_short_or_resumed_run_prints_its_last_step_once") {
  for (const int first : {0, 97}) {
    std::FILE* file = std::tmpfile();
    {
      Progress progress(100, first, file);
      for (int step = first + 1; step <= 100; ++step) progress.update(step, 2.5, 1000);
      progress.update(100, 2.5, 1000);
    }
    const std::string text = content(file);
    std::fclose(file);
    CHECK(std::count(text.begin(), text.end(), '\n') == (first ? 3 : 20));
    CHECK(text.find("100/100") == text.rfind("100/100"));
  }
}

TEST_CASE("progress_draws_one_bar_on_a_terminal_with_notes_above_it") {
  const Variable kind("TERM", "xterm"), columns_variable("COLUMNS", nullptr);
  const Variable no_color("NO_COLOR", nullptr);
  const Terminal terminal(40);
  Progress progress(100, 0, terminal.out);
  progress.update(1, 2.5, 1000);
  const std::string bar = terminal.text();
  CHECK(bar.front() == '\r');
  CHECK(bar.find('\n') == bar.npos);
  CHECK(columns(bar) - 1 < 40);
  CHECK_THAT(bar, ContainsSubstring("1/100") && ContainsSubstring("loss 2.5000"));
  progress.update(2, 2.5, 1000);  // too soon to be seen
  CHECK(terminal.text() == "");
  progress.note("a sample");
  CHECK_THAT(terminal.text(), ContainsSubstring("\r\x1b[Ka sample\r\n\r2/100"));
  progress.hide();
  CHECK(terminal.text() == "\r\x1b[K");
  progress.show();
  CHECK_THAT(terminal.text(), ContainsSubstring("2/100"));
  progress.update(100, 2.5, 1000);  // the last step is always shown
  CHECK_THAT(terminal.text(), ContainsSubstring("100/100"));
  progress.finish();
  CHECK(terminal.text() == "\r\n");
}

TEST_CASE("progress_respects_no_color_and_columns_and_dumb_terminals") {
  const Variable language("LC_ALL", "C.UTF-8");
  const auto shown = [](const char* kind, const char* no_color, const char* width) {
    const Variable a("TERM", kind), b("NO_COLOR", no_color), c("COLUMNS", width);
    const Terminal terminal(100);
    Progress(100, 0, terminal.out).update(50, 2.5, 1000);
    return terminal.text();
  };
  CHECK_THAT(shown("xterm", nullptr, nullptr), ContainsSubstring("\x1b[36m━"));
  CHECK_THAT(shown("xterm", "1", nullptr),
             !ContainsSubstring("\x1b[36m") && ContainsSubstring("━─"));
  CHECK_THAT(shown("dumb", nullptr, nullptr),
             !ContainsSubstring("\x1b") && ContainsSubstring("=-"));
  CHECK(columns(shown("xterm", nullptr, "30")) < columns(shown("xterm", nullptr, "70")));
}
