// A trained language model as its checkpoint holds it: all that generating text needs.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer.h"
#include "layers/gpt.h"
#include "train/checkpoint.h"

namespace tapeformer {

struct LanguageModel {
  std::unique_ptr<GPT> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelFile description;
};

/// Reads a checkpoint's folder or a model file. Throws what the readers throw; a norm or placement
/// that this program does not know is named.
LanguageModel load_language_model(const std::filesystem::path& folder_or_file,
                                  Device device = Device::cpu);

}  // namespace tapeformer
