#include "train/generation.h"

#include <algorithm>

#include "data/utf8.h"

namespace tapeformer {
namespace {

Tensor as_batch(std::span<const int32_t> tokens) {
  return Tensor::from(std::vector<int32_t>(tokens.begin(), tokens.end()),
                      {1, static_cast<int64_t>(tokens.size())});
}

std::vector<int32_t> starting_tokens(const Tokenizer& tokenizer, std::string_view prompt) {
  if (!prompt.empty()) return tokenizer.encode(prompt);
  try {
    return tokenizer.encode("\n");
  } catch (const Error&) {
    return {0};
  }
}

}  // namespace

void generate_tokens(GPT& model, std::span<const int32_t> prompt, int64_t count,
                     const SamplingOptions& options, uint64_t seed,
                     const std::function<bool(int32_t)>& sink) {
  check(!prompt.empty(), "generate: needs a prompt of at least one token");
  check(count >= 0, "generate: the number of tokens must not be negative, got ", count);
  check_sampling_options(options);
  const size_t context = model.config().context;
  Generator generator({seed, Purpose::sampling, 0, 0});
  std::vector<int32_t> history(prompt.begin(), prompt.end());
  GPT::Cache cache = model.make_cache();
  size_t fed = history.size() - std::min(history.size(), context);  // tokens before this are past
  size_t first = fed;                                               // the cache holds [first, fed)
  for (int64_t i = 0; i < count; ++i) {
    if (history.size() - first > context) {
      first = fed = history.size() - std::max<size_t>(1, context / 2);
      for (KVCache& layer : cache) layer.length = 0;
    }
    const Tensor logits = model.decode(as_batch(std::span(history).subspan(fed)), cache);
    fed = history.size();
    const Tensor scores = cast(logits, DType::f32);
    history.push_back(sample_token({scores.data<float>(), static_cast<size_t>(scores.numel())},
                                   options, generator));
    if (!sink(history.back())) return;
  }
}

void generate_text(GPT& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t count,
                   const SamplingOptions& options, uint64_t seed,
                   const std::function<void(const std::string&)>& sink) {
  Utf8Stream stream;
  generate_tokens(model, starting_tokens(tokenizer, prompt), count, options, seed,
                  [&](int32_t token) {
                    sink(stream.push(tokenizer.decode(token)));
                    return true;
                  });
  sink(stream.finish());
}

std::string generate_text(GPT& model, const Tokenizer& tokenizer, std::string_view prompt,
                          int64_t count, const SamplingOptions& options, uint64_t seed) {
  std::string text;
  generate_text(model, tokenizer, prompt, count, options, seed,
                [&](const std::string& piece) { text += piece; });
  return text;
}

}  // namespace tapeformer
