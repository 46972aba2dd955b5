#include "train/language_model.h"

#include "train/model_config.h"

namespace tapeformer {

LanguageModel load_language_model(const std::filesystem::path& folder_or_file) {
  LanguageModel result;
  result.description = read_model_file(folder_or_file);
  result.model = std::make_unique<GPT>(config_from_json(result.description.config));
  result.tokenizer = Tokenizer::from_json(result.description.tokenizer);
  load_model(folder_or_file, *result.model);
  return result;
}

}  // namespace tapeformer
