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

// The scores of what follows a history that grows. Where a norm mixes time steps there is no cache,
// and the whole context goes through the model for each token; a model that is not causal is
// refused by make_cache().
class NextToken {
 public:
  NextToken(GPT& model, const std::vector<int32_t>& history)
      : model_(model),
        history_(history),
        context_(model.config().context),
        cached_(model.mixes(false) == Mixes::nothing || !model.config().causal),
        fed_(history.size() - std::min(history.size(), context_)),
        first_(fed_) {
    if (cached_) cache_ = model.make_cache();
  }

  Tensor scores() {
    if (history_.size() - first_ > context_) slide();
    if (!cached_) return scores_of_all();
    const Tensor logits = model_.decode(as_batch(std::span(history_).subspan(fed_)), cache_);
    fed_ = history_.size();
    return logits;
  }

 private:
  void slide() {
    first_ = fed_ = history_.size() - std::max<size_t>(1, context_ / 2);
    for (KVCache& layer : cache_) layer.length = 0;
  }
  Tensor scores_of_all() {
    const Pause pause;
    const Tensor logits = model_.logits(as_batch(std::span(history_).subspan(first_)));
    return slice(logits, 1, logits.dim(1) - 1, logits.dim(1));
  }

  GPT& model_;
  const std::vector<int32_t>& history_;
  size_t context_;
  bool cached_;
  size_t fed_, first_;  // tokens before fed_ were fed; the cache holds [first_, fed_)
  GPT::Cache cache_;
};

}  // namespace

void generate_tokens(GPT& model, std::span<const int32_t> prompt, int64_t count,
                     const SamplingOptions& options, uint64_t seed,
                     const std::function<bool(int32_t)>& sink) {
  check(!prompt.empty(), "generate: needs a prompt of at least one token");
  check(count >= 0, "generate: the number of tokens must not be negative, got ", count);
  check_sampling_options(options);
  Generator generator({seed, Purpose::sampling, 0, 0});
  std::vector<int32_t> history(prompt.begin(), prompt.end());
  NextToken next(model, history);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor scores = cast(next.scores(), DType::f32).to(Device::cpu);
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
