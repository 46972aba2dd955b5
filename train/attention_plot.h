// A matrix of weights between two sentences as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tapeformer {

struct TokenPair;
struct Translator;

/// Rows are target tokens, columns source tokens, the darker the larger the weight (0 ... 1), as an
/// SVG file. Throws unless the weights are rows x columns.
void write_attention(const std::filesystem::path& path, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<double>>& weights);
/// Where a translator's decoder looks in the source while it reads the target: attention_of(), the
/// tokens and the ends beside it.
void write_attention(const std::filesystem::path& path, Translator& translator,
                     const TokenPair& sentences);

}  // namespace tapeformer
