#include "train/language_model.h"

#include <algorithm>

#include "train/model_config.h"

namespace tapeformer {

LanguageModel load_language_model(const std::filesystem::path& folder_or_file, Device device) {
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
  convert(*result.model, result.description.dtype, device);
  result.tokenizer = Tokenizer::from_json(result.description.tokenizer);
  load_model(folder_or_file, *result.model);
  return result;
}

}  // namespace tapeformer
