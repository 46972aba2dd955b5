// The emulator's switches for tests that also run on a GPU, which has none of them.
#pragma once

#ifdef TAPEFORMER_CUDA_EMULATED
#include "cuda_emulator/emulator.h"
#else

#include <cstdint>

namespace cuda_emulator {

enum class Order { forward, reverse, random };
/// A GPU's threads run in an order of its own.
inline void set_order(Order, uint64_t = 1) {}

}  // namespace cuda_emulator

#endif
