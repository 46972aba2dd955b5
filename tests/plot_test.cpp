// Plots: well-formed, true to the data, and of bounded size.
#include "train/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "tests/catch.h"
#include "tests/locale_with_comma.h"
#include "tests/temporary_folder.h"
#include "train/files.h"

using namespace tapeformer;

namespace {

size_t count(const std::string& text, const std::string& piece) {
  size_t result = 0;
  for (size_t at = text.find(piece); at != text.npos; at = text.find(piece, at + 1)) ++result;
  return result;
}

// True when every element of the XML is closed, in order, and text holds no bare & or <.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size(); ++at) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) - at);
      if (entity != "&amp" && entity != "&lt" && entity != "&gt" && entity != "&quot") return false;
    }
    if (static_cast<unsigned char>(xml[at]) < 0x20 && xml[at] != '\n') return false;
    if (xml[at] != '<') continue;
    const size_t end = xml.find('>', at);
    if (end == xml.npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != tag.npos || count(tag, "\"") % 2) return false;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end;
  }
  return open.empty();
}

// The path of the panel's only line: the d attribute of class "line" outside the legend.
std::string path_of(const Line& line, Scale scale = Scale::linear) {
  Figure figure;
  figure.add({.y_scale = scale, .lines = {line}});
  const std::string svg = figure.svg();
  REQUIRE(well_formed(svg));
  const size_t element = svg.find("<path class=\"line\"");
  if (element == svg.npos) return "";
  const size_t begin = svg.find(" d=\"", element) + 4;
  return svg.substr(begin, svg.find('"', begin) - begin);
}

struct Point {
  double x, y;
};
std::vector<Point> points_of(const std::string& path) {
  std::vector<Point> points;
  std::istringstream text(path);
  text.imbue(std::locale::classic());
  Point point{};
  for (char command = 0; text >> command >> point.x >> point.y;) points.push_back(point);
  return points;
}

}  // namespace

TEST_CASE("plot_ticks_are_round_numbers_inside_the_range") {
  const auto ticks = [](double low, double high, int n) { return nice_ticks(low, high, n); };
  CHECK(ticks(0, 2000, 4) == std::vector<double>{0, 500, 1000, 1500, 2000});
  CHECK(ticks(1.4, 4.3, 5) == std::vector<double>{2, 3, 4});
  CHECK(ticks(-7, 7, 3) == std::vector<double>{-5, 0, 5});
  const std::vector<double> small = ticks(0, 1e-3, 5);
  REQUIRE(small.size() == 6);
  for (size_t i = 0; i < small.size(); ++i) CHECK(small[i] == Approx(2e-4 * i).margin(1e-18));
  for (int n = 1; n < 12; ++n)
    for (const double high : {1e-9, 0.37, 1.0, 77.7, 3e12})
      CHECK(ticks(0, high, n).size() <= static_cast<size_t>(n) + 1);
  CHECK_THROWS_WITH(ticks(1, 1, 5), ContainsSubstring("nice_ticks: needs low < high"));
}

TEST_CASE("plot_puts_points_where_their_values_are") {
  const auto points = points_of(path_of({.x = {0, 5, 10}, .y = {0, 4, 2}}));
  REQUIRE(points.size() == 3);
  CHECK(points[0].x < points[1].x);
  CHECK(points[2].x - points[1].x == Approx(points[1].x - points[0].x).margin(0.2));
  // y points down in SVG.
  CHECK(points[0].y - points[2].y == Approx((points[0].y - points[1].y) / 2).margin(0.2));
  CHECK(points[1].y < points[2].y);

  const auto powers = points_of(path_of({.x = {0, 1, 2}, .y = {1, 10, 100}}, Scale::log10));
  REQUIRE(powers.size() == 3);
  CHECK(powers[0].y - powers[1].y == Approx(powers[1].y - powers[2].y).margin(0.2));
}

TEST_CASE("plot_leaves_a_gap_where_there_is_no_value") {
  const double nan = NAN, infinity = std::numeric_limits<double>::infinity();
  CHECK(count(path_of({.x = {0, 1, 2, 3, 4}, .y = {1, 2, 3, 4, 5}}), "M") == 1);
  for (const double missing : {nan, infinity, -infinity})
    CHECK(count(path_of({.x = {0, 1, 2, 3, 4}, .y = {1, 2, missing, 4, 5}}), "M") == 2);
  CHECK(count(path_of({.x = {0, 1, 2, 3, 4}, .y = {1, 2, 0, 4, 5}}, Scale::log10), "M") == 2);
  CHECK(count(path_of({.x = {0, 1, 2, 3, 4}, .y = {1, 2, -3, 4, 5}}, Scale::log10), "M") == 2);
  // A value alone between gaps is a point.
  Figure figure;
  figure.add({.lines = {{.x = {0, 1, 2}, .y = {nan, 1, nan}}}});
  CHECK(count(figure.svg(), "class=\"marker\"") == 1);
}

TEST_CASE("plot_of_a_million_points_is_small_and_keeps_its_extremes") {
  Line line;
  for (int i = 0; i < 1'000'000; ++i) {
    line.x.push_back(i);
    line.y.push_back(i == 777'777 ? 10 : i == 333'333 ? -10 : std::sin(i * 0.001));
  }
  const std::string path = path_of(line);
  CHECK(path.size() < 60'000);
  const auto points = points_of(path);
  const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  const auto [top, bottom] = std::minmax_element(points.begin(), points.end(), lower);
  // -10 ... 10 fills the plotting area, sin its middle tenth.
  CHECK(bottom->y - top->y == Approx(200).margin(0.5));
  CHECK((top->x - points.front().x) / (points.back().x - points.front().x) ==
        Approx(0.777777).margin(0.003));
}

TEST_CASE("plot_is_well_formed_whatever_the_text") {
  Figure figure{.title = "a < b && \"c\" > 'd' \x01 é"};
  figure.add({.title = "<script>",
              .x_label = "x & y",
              .y_label = "\"",
              .lines = {{.label = "</svg>", .x = {0, 1}, .y = {0, 1}}},
              .levels = {{.label = "l & l", .y = 0.5}}});
  const std::string svg = figure.svg();
  CHECK(well_formed(svg));
  CHECK_THAT(svg, ContainsSubstring("&lt;script&gt;") && ContainsSubstring("&lt;/svg&gt;") &&
                      ContainsSubstring("l &amp; l") && ContainsSubstring("é"));
}

TEST_CASE("plot_survives_every_range") {
  const double largest = std::numeric_limits<double>::max();
  const std::vector<std::vector<double>> ranges = {{},
                                                   {NAN, NAN},
                                                   {0, 0},
                                                   {3, 3},
                                                   {-3, -3},
                                                   {1e-320, 1},
                                                   {largest, -largest},
                                                   {1e300, 1e-300},
                                                   {5e-324, 5e-324},
                                                   {1, 1 + 1e-15},
                                                   {-1e-9, 1e9},
                                                   {1e15, 1e15 + 1},
                                                   {largest, largest}};
  for (const std::vector<double>& y : ranges)
    for (const Scale scale : {Scale::linear, Scale::log10}) {
      Line line{.y = y};
      for (size_t i = 0; i < y.size(); ++i) line.x.push_back(static_cast<double>(i));
      Figure figure;
      figure.add({.y_scale = scale, .lines = {line}});
      const std::string svg = figure.svg();
      CHECK(well_formed(svg));
      const std::string body = svg.substr(svg.find("</style>"));
      CHECK(body.find("nan") == body.npos);
      CHECK(body.find("inf") == body.npos);
      CHECK(svg.size() < 20'000);
    }
  CHECK(well_formed(Figure{}.svg()));
}

TEST_CASE("plot_lines_differ_in_colour_and_dashes") {
  Panel panel;
  for (int i = 0; i < 6; ++i)
    panel.lines.push_back({.label = std::to_string(i), .x = {0, 1}, .y = {0, 1.0 + i}});
  panel.lines[1].style = 0;  // asked for, so that the others keep off it
  Figure figure;
  figure.add(panel);
  const std::string svg = figure.svg();
  std::set<std::string> looks;
  for (size_t at = svg.find("stroke=\"#"); at != svg.npos; at = svg.find("stroke=\"#", at + 1))
    looks.insert(svg.substr(at, svg.find(" d=", at) - at));
  CHECK(looks.size() == 6);
}

TEST_CASE("plot_refuses_lines_whose_coordinates_do_not_match") {
  Figure figure;
  figure.add({.lines = {{.label = "loss", .x = {1, 2}, .y = {1}}}});
  CHECK_THROWS_WITH(figure.svg(), "plot: line \"loss\" has 2 values of x and 1 of y");
}

TEST_CASE("plot_is_the_same_under_every_locale") {
  Figure figure;
  figure.add({.title = "t", .lines = {{.label = "a", .x = {0, 1500.5}, .y = {0.25, 0.5}}}});
  const std::string svg = figure.svg();
  CHECK_THAT(svg, ContainsSubstring(">0.30<") && ContainsSubstring(">1,000<"));
  const LocaleWithComma locale;
  CHECK(figure.svg() == svg);
}

TEST_CASE("curves_show_losses_rate_norm_and_the_perfect_loss") {
  const TemporaryFolder folder;
  std::vector<Metrics> metrics;
  for (int step = 0; step < 150; ++step) {
    metrics.push_back({.step = step, .train_loss = 4 - step * 0.01, .lr = 1e-3, .grad_norm = 1});
    if (step % 50 == 0) metrics.push_back({.step = step, .val_loss = 4 - step * 0.01});
  }
  write_curves(folder.path, metrics, 1.25);
  const std::string svg = read_file(folder / "curves.svg");
  CHECK(well_formed(svg));
  for (const char* text :
       {"Loss", "Learning rate", "Gradient norm", "training (running mean)",
        "validation (last 3.0000)", "entropy of the source 1.2500", "step", "nats per token"})
    CHECK_THAT(svg, ContainsSubstring(std::string(">") + text + "<"));
  CHECK(count(svg, "class=\"level\"") == 2);  // across the panel, and in the legend
  CHECK(count(svg, "class=\"faint\"") == 2);

  write_curves(folder.path, {});
  const std::string empty = read_file(folder / "curves.svg");
  CHECK(well_formed(empty));
  CHECK(count(empty, "no values yet") == 3);
  CHECK(count(empty, "class=\"level\"") == 0);
}

TEST_CASE("curves_of_norms_of_very_different_size_are_logarithmic") {
  const TemporaryFolder folder;
  write_curves(folder.path, {{.step = 0, .grad_norm = 1e5}, {.step = 1, .grad_norm = 0.1}});
  CHECK_THAT(read_file(folder / "curves.svg"), ContainsSubstring(">1,000<"));
  write_curves(folder.path, {{.step = 0, .grad_norm = NAN}, {.step = 1, .grad_norm = 0.0}});
  CHECK(well_formed(read_file(folder / "curves.svg")));
}
