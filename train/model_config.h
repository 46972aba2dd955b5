// A model's configuration as JSON, the form in which checkpoints carry it.
#pragma once

#include <string>
#include <string_view>

#include "layers/config.h"
#include "train/checkpoint.h"

namespace tapeformer {

std::string to_json(const TransformerConfig& config);
/// Keys that are absent keep their default. Throws for text that is no JSON object, an unknown key
/// or a value of the wrong type, naming it.
TransformerConfig config_from_json(std::string_view json);

/// Before memory is spent on what a configuration claims: throws unless the model file at `path`
/// holds as many numbers.
void check_claim(const ModelFile& file, const TransformerConfig& config, const std::string& path);

}  // namespace tapeformer
