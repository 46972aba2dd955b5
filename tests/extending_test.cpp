// The code in docs/extending.md is the code of the tree.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

// The lines of a file without the spaces at their ends.
Lines lines_of(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  Lines lines;
  for (std::string line; std::getline(file, line);) {
    line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  return lines;
}

/// A piece of code, and the file that the text names before it.
struct Quote {
  std::string file;
  Lines lines;
};

/// The blocks marked as C++. A line of three dots divides a block into quotes of its own.
std::vector<Quote> quotes_of(const Lines& text) {
  std::vector<Quote> quotes;
  std::string file;
  bool inside = false;
  for (const std::string& line : text) {
    if (line == "```cpp" || (inside && line == "...")) {
      quotes.push_back({file, {}});
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      quotes.back().lines.push_back(line);
    } else if (const size_t link = line.find("](../"); link != std::string::npos) {
      file = line.substr(link + 5, line.find(')', link) - link - 5);
    }
  }
  return quotes;
}

bool holds(const Lines& file, const Lines& quote) {
  return std::search(file.begin(), file.end(), quote.begin(), quote.end()) != file.end();
}

}  // namespace

TEST_CASE("the_code_in_the_guide_to_extending_is_the_code_of_the_tree") {
  const fs::path root = TAPEFORMER_SOURCE_DIR;
  const std::vector<Quote> quotes = quotes_of(lines_of(root / "docs/extending.md"));
  CHECK(quotes.size() > 12);
  for (const Quote& quote : quotes) {
    REQUIRE(!quote.lines.empty());
    INFO(quote.file << " has no lines that read: " << quote.lines[0] << " ...; bring "
                    << "docs/extending.md up to date");
    CHECK(holds(lines_of(root / quote.file), quote.lines));
  }
}

TEST_CASE("a_quote_that_differs_in_a_line_is_found") {
  const auto quotes = quotes_of({"in [a](../core/a.h):", "```cpp", "one;", "...", "two;", "```"});
  REQUIRE(quotes.size() == 2);
  CHECK(quotes[1].file == "core/a.h");
  CHECK(holds({"zero;", "one;", "two;"}, quotes[1].lines));
  CHECK(!holds({"zero;", "two ;"}, quotes[1].lines));
}
