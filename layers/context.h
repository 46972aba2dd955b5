// What a forward pass has to know beside its input.
#pragma once

#include "core/tensor.h"

namespace tapeformer {

struct Context {
  bool training = false;  ///< dropout drops, batch statistics are taken
  Tensor lengths = {};    ///< [B] i32, optional: positions at or after lengths[b] are padding
};

}  // namespace tapeformer
