// A look inside a model, layer by layer: how large the residual stream is, how large the gradients
// are, how far the statistics lie apart.
#pragma once

#include <vector>

#include "data/corpus.h"
#include "layers/gpt.h"
#include "train/metrics.h"

namespace tapeformer {

/// Root mean square of the residual stream, padding left out: after the embedding, and after every
/// block. With the batch's statistics and without dropout; tokens (i32) [B,T], lengths (i32) [B] or
/// undefined.
std::vector<double> stream_rms(GPT& model, const Tensor& tokens, const Tensor& lengths = {});

struct Profile {
  std::vector<double> stream_rms;
  std::vector<NamedValue> gradient_norms;  ///< of every parameter: its Frobenius norm
  std::vector<NamedValue> tid;             ///< statistics_distance, where there is one
};

/// One forward and backward pass over `batch`, with the batch's statistics and without dropout.
/// Parameters and buffers stay bit for bit; the parameters' gradients are unwritten afterwards.
Profile profile(GPT& model, const Batch& batch);

}  // namespace tapeformer
