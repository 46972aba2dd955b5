// A matrix of weights between two sentences as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tapeformer {

/// Rows are target tokens, columns source tokens, the darker the larger the weight (0 ... 1), as an
/// SVG file. Throws unless the weights are rows x columns.
void write_attention(const std::filesystem::path& path, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<double>>& weights);

}  // namespace tapeformer
