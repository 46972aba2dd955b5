#include "train/plot.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "train/files.h"
#include "train/format.h"
#include "train/plot_axis.h"

namespace tapeformer {
namespace {

// Colours differ in lightness, so that they stay apart in grey and for the colour-blind; dashes and
// markers differ as well.
struct Style {
  const char *colour, *dashes;
};
constexpr Style styles[] = {{"#1b4b91", ""},        {"#e8760c", "8 3"},  {"#0b8a6a", "2 3"},
                            {"#8f2a7a", "9 3 2 3"}, {"#4ba6dd", "14 4"}, {"#5c4426", "5 5"}};
constexpr int style_count = std::size(styles);

constexpr double left = 78, right = 22, line_height = 18, letter = 6.6;  // pixels

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return result;
}

double text_width(const std::string& text) {
  const auto begins = [](char c) { return (c & 0xc0) != 0x80; };  // a UTF-8 sequence
  return letter * static_cast<double>(std::count_if(text.begin(), text.end(), begins));
}

std::string number(double value) {
  std::string text = fixed(value, 1);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string text_element(double x, double y, const char* kind, const std::string& text,
                         const std::string& attributes = "") {
  return "<text class=\"" + std::string(kind) + "\" x=\"" + number(x) + "\" y=\"" + number(y) +
         "\"" + attributes + ">" + escape(text) + "</text>\n";
}

std::string line_element(double x1, double y1, double x2, double y2, const char* kind) {
  return "<path class=\"" + std::string(kind) + "\" d=\"M" + number(x1) + " " + number(y1) + "L" +
         number(x2) + " " + number(y2) + "\"/>\n";
}

std::string marker(double x, double y, int style) {
  const std::string at = number(x) + " " + number(y), fill = styles[style].colour;
  static constexpr const char* outlines[] = {
      "m-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
      "m-3-3h6v6h-6z",
      "m0-4.2l3.8 6.6h-7.6z",
      "m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z",
      "m0 4.2l3.8-6.6h-7.6z",
      "m-1.2-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z"};
  return "<path class=\"marker\" fill=\"" + fill + "\" d=\"M" + at + outlines[style] + "\"/>\n";
}

std::string stroke(const Line& line, int style, const std::string& path) {
  const std::string dashes = line.faint ? "" : styles[style].dashes;
  return "<path class=\"" + std::string(line.faint ? "faint" : "line") + "\" stroke=\"" +
         styles[style].colour + "\"" +
         (dashes.empty() ? "" : " stroke-dasharray=\"" + dashes + "\"") + " d=\"" + path + "\"/>\n";
}

struct Point {
  double x, y;
};

// Of a run of points in one column of pixels the first, the lowest, the highest and the last: all
// that can be seen of them (Jugel et al. 2014, "M4").
std::vector<Point> thin_out(const std::vector<Point>& points) {
  std::vector<Point> result;
  for (size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    const double column = std::floor(points[begin].x);
    while (end < points.size() && std::floor(points[end].x) == column) ++end;
    const auto lower = [&](size_t a, size_t b) { return points[a].y < points[b].y; };
    size_t kept[] = {begin, begin, begin, end - 1};
    for (size_t i = begin; i < end; ++i) {
      if (lower(i, kept[1])) kept[1] = i;
      if (lower(kept[2], i)) kept[2] = i;
    }
    std::sort(std::begin(kept), std::end(kept));
    const auto last = std::unique(std::begin(kept), std::end(kept));
    for (auto i = std::begin(kept); i != last; ++i) result.push_back(points[*i]);
  }
  return result;
}

// Where a panel lies on the page, and its axes.
struct Frame {
  double top, bottom, width;  // of the plotting area
  Axis x, y;
  double place_x(double value) const { return left + x.position(value) * (width - left - right); }
  double place_y(double value) const { return bottom - y.position(value) * (bottom - top); }
};

std::string draw_line(const Line& line, int style, const Frame& frame) {
  std::string path, marks;
  std::vector<Point> run;
  const auto flush = [&] {  // ends a run of points without gap
    if (run.size() == 1) marks += marker(run[0].x, run[0].y, style);
    if (run.size() > 1) {
      const char* command = "M";
      for (const Point& point : thin_out(run)) {
        path += command + number(point.x) + " " + number(point.y);
        command = "L";
      }
      if (line.markers)
        for (const Point& point : run) marks += marker(point.x, point.y, style);
    }
    run.clear();
  };
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (frame.x.shows(line.x[i]) && frame.y.shows(line.y[i]))
      run.push_back({frame.place_x(line.x[i]), frame.place_y(line.y[i])});
    else
      flush();
  }
  flush();
  return (path.empty() ? "" : stroke(line, style, path)) + marks;
}

std::string draw_level(const Level& level, const Frame& frame) {
  if (!frame.y.shows(level.y)) return "";
  const double y = frame.place_y(level.y);
  return line_element(left, y, frame.width - right, y, "level");
}

std::string draw_axes(const Panel& panel, const Frame& frame) {
  std::string result;
  for (const double tick : frame.y.ticks()) {
    const double y = frame.place_y(tick);
    result += line_element(left, y, frame.width - right, y, "grid");
    result += text_element(left - 8, y + 4, "tick", frame.y.label(tick), " text-anchor=\"end\"");
  }
  for (const double tick : frame.x.ticks()) {
    const double x = frame.place_x(tick);
    result += line_element(x, frame.top, x, frame.bottom, "grid");
    result += text_element(x, frame.bottom + line_height, "tick", frame.x.label(tick),
                           " text-anchor=\"middle\"");
  }
  result += line_element(left, frame.bottom, frame.width - right, frame.bottom, "axis");
  if (!panel.x_label.empty())
    result += text_element((left + frame.width - right) / 2, frame.bottom + 2 * line_height + 3,
                           "label", panel.x_label, " text-anchor=\"middle\"");
  if (!panel.y_label.empty()) {
    const double middle = (frame.top + frame.bottom) / 2;
    result +=
        text_element(18, middle, "label", panel.y_label,
                     " text-anchor=\"middle\" transform=\"rotate(-90 18 " + number(middle) + ")\"");
  }
  return result;
}

// The style of each line: the one it asks for, otherwise the next that nobody asked for.
std::vector<int> styles_of(const Panel& panel) {
  std::vector<int> result;
  int next = 0;
  const auto taken = [&](int style) {
    return std::any_of(panel.lines.begin(), panel.lines.end(),
                       [&](const Line& line) { return line.style == style; });
  };
  for (const Line& line : panel.lines) {
    int style = line.style;
    if (style < 0) {
      while (next < style_count && taken(next)) ++next;
      style = next++;
    }
    result.push_back(style % style_count);
  }
  return result;
}

// The legend: rows at the right, above the plotting area where no data is. The first row shares its
// line with the title.
struct LegendEntry {
  std::string label;
  const Line* line;  // null for a level
  int style;
  double x;
  int row;
};

std::vector<LegendEntry> lay_out_legend(const Panel& panel, double width) {
  constexpr double swatch = 34, gap = 18;
  std::vector<LegendEntry> result;
  double x = left + text_width(panel.title) * 1.25 + gap;
  int row = 0;
  const auto add = [&](const std::string& label, const Line* line, int style) {
    if (label.empty()) return;
    const double needed = swatch + text_width(label);
    if (x + needed > width - right && x > left) {
      ++row;
      x = left;
    }
    result.push_back({label, line, style, x, row});
    x += needed + gap;
  };
  const std::vector<int> style = styles_of(panel);
  for (size_t i = 0; i < panel.lines.size(); ++i)
    add(panel.lines[i].label, &panel.lines[i], style[i]);
  for (const Level& level : panel.levels) add(level.label, nullptr, 0);

  for (size_t i = result.size(); i-- > 0;) {  // moves each row to the right margin
    const bool last = i + 1 == result.size() || result[i + 1].row != result[i].row;
    const double end = last ? width - right : result[i + 1].x - gap;
    result[i].x = end - swatch - text_width(result[i].label);
  }
  return result;
}

std::string draw_legend(const std::vector<LegendEntry>& legend, double top) {
  std::string result;
  for (const LegendEntry& entry : legend) {
    const double y = top + 14 + entry.row * line_height;
    const std::string path = "M" + number(entry.x) + " " + number(y - 4) + "h26";
    result += entry.line ? stroke(*entry.line, entry.style, path)
                         : "<path class=\"level\" d=\"" + path + "\"/>\n";
    if (entry.line && entry.line->markers) result += marker(entry.x + 13, y - 4, entry.style);
    result += text_element(entry.x + 34, y, "legend", entry.label);
  }
  return result;
}

constexpr const char* css = R"(<style>
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; fill: #2b2f36; }
.title { font-size: 17px; font-weight: 600; }
.panel { font-size: 14px; font-weight: 600; }
.legend, .label { font-size: 12px; }
.tick { font-size: 11px; fill: #5b626d; }
.label { fill: #5b626d; }
.grid { stroke: #e7e9ed; fill: none; }
.axis { stroke: #9aa1ab; fill: none; }
.level { stroke: #40454e; stroke-width: 1.2; stroke-dasharray: 1.5 3.5; stroke-linecap: round; fill: none; }
.line { stroke-width: 2; stroke-linejoin: round; fill: none; }
.faint { stroke-width: 1; stroke-opacity: .28; stroke-linejoin: round; fill: none; }
.marker { stroke: #fff; stroke-width: 1; }
</style>
)";

void include_x(const Panel& panel, Axis& axis) {
  for (const Line& line : panel.lines)
    for (const double value : line.x) axis.include(value);
}

Axis y_axis(const Panel& panel) {
  Axis axis(panel.y_scale);
  for (const Line& line : panel.lines)
    for (const double value : line.y) axis.include(value);
  for (const Level& level : panel.levels) axis.include(level.y);
  axis.settle(std::max(2, static_cast<int>(panel.height / 40)), true);
  return axis;
}

// One panel from `top` on; moves `top` below it.
std::string draw_panel(const Panel& panel, double width, const Axis& x_axis, double& top) {
  const std::vector<LegendEntry> legend = lay_out_legend(panel, width);
  const double header = 26 + (legend.empty() ? 0 : legend.back().row * line_height);
  const Frame frame{top + header, top + header + panel.height, width, x_axis, y_axis(panel)};
  std::string result = text_element(left, top + 14, "panel", panel.title);
  result += draw_legend(legend, top) + draw_axes(panel, frame);
  for (const Level& level : panel.levels) result += draw_level(level, frame);
  const std::vector<int> style = styles_of(panel);
  for (size_t i = 0; i < panel.lines.size(); ++i)
    result += draw_line(panel.lines[i], style[i], frame);
  const auto no_values = [](const Line& line) { return line.x.empty(); };
  if (std::all_of(panel.lines.begin(), panel.lines.end(), no_values))
    result += text_element((left + width - right) / 2, frame.top + panel.height / 2, "label",
                           "no values yet", " text-anchor=\"middle\"");
  top = frame.bottom + (panel.x_label.empty() ? 1 : 2) * line_height + 20;
  return result;
}

}  // namespace

std::string Figure::svg() const {
  Axis shared(Scale::linear);
  for (const Panel& panel : panels) {
    for (const Line& line : panel.lines)
      check(line.x.size() == line.y.size(), "plot: line \"", line.label, "\" has ", line.x.size(),
            " values of x and ", line.y.size(), " of y");
    include_x(panel, shared);
  }
  const int x_ticks = std::max(2, static_cast<int>((width - left - right) / 90));
  double top = 16;
  std::string body;
  if (!title.empty()) {
    body += text_element(left, top + 16, "title", title);
    top += 38;
  }
  for (const Panel& panel : panels) {
    Axis x_axis = shared;
    if (!share_x) {
      x_axis = Axis(Scale::linear);
      include_x(panel, x_axis);
    }
    x_axis.settle(x_ticks, false);
    body += draw_panel(panel, width, x_axis, top);
  }
  const std::string size = number(width) + " " + number(top);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size +
         "\" role=\"img\" aria-label=\"" + escape(title.empty() ? "Plot" : title) + "\">\n" + css +
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" + body + "</svg>\n";
}

void Figure::save(const std::filesystem::path& path) const { write_file_atomically(path, svg()); }

}  // namespace tapeformer
