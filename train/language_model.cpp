#include "train/language_model.h"

#include <algorithm>

#include "train/model_config.h"

namespace tapeformer {

namespace {

// Before memory is spent on what a configuration claims: the file must hold as much.
void check_claim(const ModelFile& file, const TransformerConfig& config, const std::string& path) {
  // Every block has tensors of its own.
  check(config.layers <= file.tensors, path, ": ", config.layers, " layers are more than its ",
        file.tensors, " tensors");
  const double channels = static_cast<double>(config.channels);
  double numbers = static_cast<double>(config.layers) * channels * channels;  // W_o
  numbers += static_cast<double>(config.layers) * channels * static_cast<double>(config.hidden);
  numbers += static_cast<double>(config.vocabulary) * channels;
  if (config.position == "learned") numbers += static_cast<double>(config.context) * channels;
  check(numbers <= file.numbers, path, ": its configuration asks for ", numbers,
        " numbers or more, and its tensors hold ", file.numbers);
}

}  // namespace

LanguageModel load_language_model(const std::filesystem::path& folder_or_file) {
  LanguageModel result;
  result.description = read_model_file(folder_or_file);
  const TransformerConfig config = config_from_json(result.description.config);
  const std::vector<std::string> known = norm_names();
  check(
      std::ranges::count(known, config.norm) == 1, folder_or_file.string(),
      " is a model with the norm '", config.norm,
      "', which this program does not have; link it in and call register_norm() first; known are ",
      known);
  check_claim(result.description, config, folder_or_file.string());
  result.model = std::make_unique<GPT>(config);
  convert(*result.model, result.description.dtype);
  result.tokenizer = Tokenizer::from_json(result.description.tokenizer);
  load_model(folder_or_file, *result.model);
  return result;
}

}  // namespace tapeformer
