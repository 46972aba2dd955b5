// What a forward pass has to know beside its input.
#pragma once

#include <functional>

#include "core/tensor.h"

namespace tapeformer {

struct Context {
  bool training = false;  ///< dropout drops, batch statistics are taken
  /// [B] i32, optional: positions at or after lengths[b] are padding. On the host, so that nobody
  /// who counts with them has to wait for a GPU.
  Tensor lengths = {};
  Tensor memory_lengths = {};  ///< the same of what a decoder attends to
  /// Outside training: norms take the statistics of the batch, and leave the running ones alone.
  bool batch_statistics = false;
  /// Called with the residual stream [B,T,C]: after the embedding (block 0) and after every block.
  std::function<void(int64_t blocks, const Tensor& stream)> observe_stream = {};
  /// Called with the weights [B,H,T,S] of cross-attention, for each block in order.
  std::function<void(const Tensor& weights)> observe_cross_attention = {};
};

}  // namespace tapeformer
