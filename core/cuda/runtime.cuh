// The GPU that this process computes on.
#pragma once

#include "core/cuda/launch.cuh"

namespace tapeformer::cuda {

/// The stream that everything runs on. Throws Error, with the reason, when there is no GPU to use.
cudaStream_t stream();
/// How many multiprocessors the GPU has.
int processors();

}  // namespace tapeformer::cuda
