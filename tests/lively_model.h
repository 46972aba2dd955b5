// Models and texts for tests that look inside a model.
#pragma once

#include <algorithm>
#include <memory>

#include "data/stories.h"
#include "train/leak.h"

namespace tapeformer {

inline TransformerConfig tiny(const std::string& norm, const std::string& placement = "pre") {
  return {.vocabulary = 11,
          .context = 8,
          .layers = 2,
          .heads = 2,
          .channels = 8,
          .norm = norm,
          .placement = placement};
}

// [batch, time] of pseudo-random tokens.
inline Tensor tokens(int64_t batch, int64_t time, int32_t vocabulary = 11) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < batch * time; ++i)
    ids.push_back(static_cast<int32_t>((i * i * 7 + i * 3) % vocabulary));
  return Tensor::from(ids, {batch, time});
}

// A model with weights at which everything matters.
inline std::unique_ptr<GPT> lively(const TransformerConfig& config) {
  auto model = std::make_unique<GPT>(config);
  randomise(*model, 5);
  return model;
}

// Stories in windows, or word by word: then batches have padding.
struct Stories {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Corpus> corpus;

  explicit Stories(bool lines = false, int64_t rows = 3) {
    std::string content = generate_stories(1, 4000);
    if (lines) std::ranges::replace(content, ' ', '\n');
    const Text text(content, "stories");
    tokenizer = make_tokenizer("character", text.view());
    const BatchOptions options{.rows = rows, .context = 8, .seed = 1};
    if (lines)
      corpus = std::make_unique<LineCorpus>(text, *tokenizer, options);
    else
      corpus = std::make_unique<TextCorpus>(text, *tokenizer, options);
  }
  TransformerConfig config(const std::string& norm) const {
    TransformerConfig config = tiny(norm);
    config.vocabulary = tokenizer->vocabulary_size();
    return config;
  }
};

// Of every tensor of a module.
inline std::vector<Tensor> copies(Module& module) {
  std::vector<Tensor> result;
  for (const NamedTensor& entry : named_tensors(module)) result.push_back(entry.tensor.clone());
  return result;
}

}  // namespace tapeformer
