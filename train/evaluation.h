// How good a language model is on text that it was not trained on.
#pragma once

#include <string>
#include <vector>

#include "data/corpus.h"
#include "layers/gpt.h"
#include "train/stop.h"

namespace tapeformer {

/// Mean cross-entropy per token, in nats, over the validation part: all of it, or `batches` batches
/// spread evenly, the same at every call. Its exponential is the perplexity. `batch_statistics`:
/// norms take the statistics of each validation batch instead of their running ones. Asks `stop`
/// before every batch.
double evaluate(GPT& model, const Corpus& corpus, int64_t batches = 0,
                bool batch_statistics = false, const StopRequest& stop = {});

struct Float16Loss {
  std::string norm;                       ///< the model's own, or an emulation of it
  double loss = 0;                        ///< nats per token
  int64_t overflows = 0, underflows = 0;  ///< of all norms and batches; see layers/float16.h
};
/// The loss of a model of layernorm or rmsnorm, and of the same weights with each float16 emulation
/// of that norm. Throws for a model of another norm.
std::vector<Float16Loss> evaluate_in_float16(GPT& model, const Corpus& corpus, int64_t batches = 0);

}  // namespace tapeformer
