#include "train/attention_plot.h"

#include <algorithm>

#include "core/check.h"
#include "data/utf8.h"
#include "train/files.h"
#include "train/format.h"
#include "train/translator.h"

namespace tapeformer {
namespace {

// Text for XML; what is no UTF-8, a part of a character, becomes U+FFFD, and so do controls.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    if (point.value == '<')
      out += "&lt;";
    else if (point.value == '&')
      out += "&amp;";
    else
      out += to_utf8(point.value < 0x20 ? 0xFFFD : point.value);
  }
  return out;
}

}  // namespace

void write_attention(const std::filesystem::path& path, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<double>>& weights) {
  check(weights.size() == rows.size(), "attention plot: ", weights.size(), " rows of weights for ",
        rows.size(), " tokens");
  constexpr double cell = 26, left = 110, top = 110, margin = 12;
  const double width = left + cell * static_cast<double>(columns.size()) + margin;
  const double height = top + cell * static_cast<double>(rows.size()) + margin;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + shortest(width) +
                    "\" height=\"" + shortest(height) +
                    "\" font-family=\"sans-serif\" font-size=\"13\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  for (size_t s = 0; s < columns.size(); ++s) {
    const double x = left + cell * (static_cast<double>(s) + 0.5);
    svg += "<text transform=\"translate(" + shortest(x + 4) + " " + shortest(top - 8) +
           ") rotate(-60)\">" + escaped(columns[s]) + "</text>\n";
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    check(weights[t].size() == columns.size(), "attention plot: a row has ", weights[t].size(),
          " weights for ", columns.size(), " tokens");
    const double y = top + cell * static_cast<double>(t);
    svg += "<text x=\"" + shortest(left - 8) + "\" y=\"" + shortest(y + 17) +
           "\" text-anchor=\"end\">" + escaped(rows[t]) + "</text>\n";
    for (size_t s = 0; s < columns.size(); ++s) {
      const double weight = std::clamp(weights[t][s], 0.0, 1.0);
      svg += "<rect x=\"" + shortest(left + cell * static_cast<double>(s)) + "\" y=\"" +
             shortest(y) + "\" width=\"" + shortest(cell - 1) + "\" height=\"" +
             shortest(cell - 1) + "\" fill=\"#1f4e79\" fill-opacity=\"" + fixed(weight, 4) +
             "\"><title>" + escaped(rows[t]) + " &lt;- " + escaped(columns[s]) + ": " +
             fixed(weight, 3) + "</title></rect>\n";
    }
  }
  write_file_atomically(path, svg + "</svg>\n");
}

void write_attention(const std::filesystem::path& path, Translator& translator,
                     const TokenPair& sentences) {
  const auto labels = [](const SentenceCoder& coder, const std::vector<int32_t>& ids) {
    std::vector<std::string> result;
    for (const int32_t id : ids) result.push_back(coder.tokenizer().decode(id));
    result.push_back("(end)");
    return result;
  };
  const auto& [source, target] = translator.coders;
  write_attention(path, labels(source, sentences.source), labels(target, sentences.target),
                  attention_of(*translator.model, sentences.source, sentences.target, source.end(),
                               target.end()));
}

}  // namespace tapeformer
