// Running and batch statistics of the norms that keep running ones: how far they lie apart, and how
// to estimate the running ones anew.
#pragma once

#include <string>
#include <vector>

#include "data/corpus.h"
#include "layers/gpt.h"
#include "train/metrics.h"

namespace tapeformer {

/// Whether the model has norms with running statistics.
bool has_running_statistics(GPT& model);

/// For each norm with running statistics, the mean over the channels of
///   |running mean - batch mean| / sqrt(batch variance + epsilon)
/// on `batch`, in order of the model: TID, the discrepancy between training and inference (Wang et
/// al. 2022, "Understanding the failure of batch normalization for Transformers in NLP"). A norm
/// without centring has no mean; there it is |running RMS - batch RMS| / batch RMS, each root over
/// epsilon too. Changes no statistics.
std::vector<NamedValue> statistics_distance(GPT& model, const Batch& batch);
/// The same of the batch that went last through the model with batch statistics.
std::vector<NamedValue> statistics_distance(GPT& model);

/// Replaces the running statistics by the plain average of those of the first `batches` training
/// batches, with all other weights as they are; every pass serves all norms. Throws for a model
/// without running statistics.
void recalibrate(GPT& model, const Corpus& corpus, int64_t batches);

/// Validation losses of a model by the statistics that its norms take, in nats per token.
struct StatisticsLosses {
  double running = 0, batch = 0, recalibrated = 0;
};
/// Over `eval_batches` validation batches (0: all), recalibrated from `batches` training batches.
/// The model keeps its own running statistics. Throws as recalibrate().
StatisticsLosses compare_statistics(GPT& model, const Corpus& corpus, int64_t batches,
                                    int64_t eval_batches);

}  // namespace tapeformer
