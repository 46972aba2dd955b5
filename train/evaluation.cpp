#include "train/evaluation.h"

namespace tapeformer {

double evaluate(GPT& model, const Corpus& corpus, int64_t batches) {
  const Pause pause;
  const int64_t count = corpus.validation_batches(batches);
  double sum = 0, tokens = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = corpus.validation_batch(i, count);
    sum +=
        batch.tokens * model.loss(batch.inputs, batch.targets, {.lengths = batch.lengths}).item();
    tokens += batch.tokens;
  }
  return sum / tokens;
}

}  // namespace tapeformer
