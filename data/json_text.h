// JSON from a file, before a parser builds values from it.
#pragma once

#include <cstddef>
#include <string_view>

namespace tapeformer {

/// Whether a text has at most `bytes` bytes and brackets nested at most 16 deep. What has more is
/// no JSON of ours: parsing it could take many times its size in memory, and printing it a stack
/// frame for each level.
bool is_modest_json(std::string_view text, size_t bytes = size_t{1} << 20);

}  // namespace tapeformer
