#include "train/option_failure.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace tapeformer {
namespace {

// The fewest letters to insert, remove or replace that make one word of the other (Levenshtein
// 1966). row[j] is that number for the letters of `a` so far and the first j of `b`.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char letter : a) {
    size_t corner = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j)
      corner = std::exchange(row[j],
                             std::min({row[j] + 1, row[j - 1] + 1, corner + (b[j - 1] != letter)}));
  }
  return row.back();
}

}  // namespace

std::string option_failure(const CLI::App* app, const CLI::Error& error) {
  std::string text = CLI::FailureMessage::simple(app, error);
  while (!app->get_subcommands().empty()) app = app->get_subcommands()[0];
  for (const std::string& argument : app->remaining()) {
    const std::string word = argument.substr(0, argument.find('='));
    const auto from_word = [&](const CLI::Option* o) {
      const std::string name = o->get_name();
      return word.size() > 3 && name.starts_with(word) ? 0 : distance(word, name);
    };
    const auto options = app->get_options();  // of which --help is one
    const CLI::Option* nearest = *std::ranges::min_element(options, {}, from_word);
    if (3 * from_word(nearest) <= word.size())
      text += "Is " + nearest->get_name() + " meant by " + word + "?\n";
  }
  return text;
}

}  // namespace tapeformer
