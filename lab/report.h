// The lab's findings as one page of Markdown.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/card.h"

namespace tapeformer::lab {

/// First a table of all statements with their verdicts and plots, then the cards. The plots are
/// expected at PLOTS/NAME.svg, seen from the page.
std::string report(const std::vector<Card>& cards, const std::string& plots);
/// Writes the page, and the plots of the cards from `out` into a folder beside it that is named as
/// the page.
void write_report(const std::vector<Card>& cards, const std::filesystem::path& out,
                  const std::filesystem::path& page);

}  // namespace tapeformer::lab
