// Sampling text from a model, token by token, over its key-value cache; without one where a norm
// mixes time steps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer.h"
#include "layers/gpt.h"
#include "train/sampling.h"

namespace tapeformer {

/// Draws `count` tokens that continue `prompt` (at least one token) and gives each to `sink`, which
/// returns false to stop. A text longer than the context slides: when the cache is full it is made
/// anew from the last half of its tokens; of a longer prompt the last tokens count.
void generate_tokens(GPT& model, std::span<const int32_t> prompt, int64_t count,
                     const SamplingOptions& options, uint64_t seed,
                     const std::function<bool(int32_t)>& sink);

/// The same for text. `sink` gets valid UTF-8; an empty prompt starts from a newline, or from the
/// first token of a vocabulary that has none. Does not repeat the prompt.
void generate_text(GPT& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t count,
                   const SamplingOptions& options, uint64_t seed,
                   const std::function<void(const std::string&)>& sink);
std::string generate_text(GPT& model, const Tokenizer& tokenizer, std::string_view prompt,
                          int64_t count, const SamplingOptions& options, uint64_t seed);

}  // namespace tapeformer
