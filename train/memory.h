// How much memory training takes at least: told from the configuration, before any of it is spent.
#pragma once

#include "core/device.h"
#include "core/dtype.h"
#include "layers/config.h"

namespace tapeformer {

/// How many numbers the matrices of a model hold; norms and biases hold a few more. An
/// encoder-decoder is one whose encoder_layers are told, not 0 for as many as the decoder's.
struct MatrixSizes {
  double vocabularies = 0;  ///< embedding tables and the output projection
  double positions = 0;     ///< learned ones
  double blocks = 0;
  double all() const { return vocabularies + positions + blocks; }
};
MatrixSizes matrix_sizes(const TransformerConfig& config);

/// In bytes.
struct TrainingMemory {
  double weights = 0;      ///< with their gradients and AdamW's two moments
  double activations = 0;  ///< of the blocks: what backward needs
  double all() const { return weights + activations; }
};
/// At least, for a model of this dtype and micro-batches of `tokens` tokens (of a decoder's
/// targets; 0 where they differ from batch to batch).
TrainingMemory training_memory(const TransformerConfig& config, DType dtype, int64_t tokens);

/// Throws, naming the numbers and the field to lower, where that is more than the device has.
void check_training_memory(const TransformerConfig& config, DType dtype, int64_t tokens,
                           Device device);

}  // namespace tapeformer
