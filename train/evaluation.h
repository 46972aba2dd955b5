// How good a language model is on text that it was not trained on.
#pragma once

#include "data/corpus.h"
#include "layers/gpt.h"

namespace tapeformer {

/// Mean cross-entropy per token, in nats, over the validation part: all of it, or `batches` batches
/// spread evenly, the same at every call. Its exponential is the perplexity.
double evaluate(GPT& model, const Corpus& corpus, int64_t batches = 0);

}  // namespace tapeformer
