// The lab's findings as one page of Markdown.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/card.h"

namespace tapeformer::lab {

/// First a table of all statements with their verdicts and plots, then the cards. FILES/NAME.svg is
/// where a plot is, FILES/NAME.csv where its runs are, seen from the page. `about`: a paragraph for
/// its head, of what no program knows, such as the machine and where the texts come from.
std::string report(const std::vector<Card>& cards, const std::string& files,
                   const std::string& about = "");
/// Throws where write_report() would: for before the work is done. Creates the page's folders.
void prepare_report(const std::filesystem::path& page);
/// Writes the page, and copies table, card and plot of each from `out` into a folder beside it that
/// is named as the page: from them everyone can check the verdicts. A file about.md in that folder
/// is the page's `about`.
void write_report(const std::vector<Card>& cards, const std::filesystem::path& out,
                  const std::filesystem::path& page);

}  // namespace tapeformer::lab
