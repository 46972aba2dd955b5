// What a test may ask of the emulator: the order of threads, the machine that it plays, and what
// has run.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "cuda_emulator/block.h"

namespace cuda_emulator {

/// The machine that the runtime describes.
struct Machine {
  int devices = 1;
  cudaError_t error = cudaSuccess;  // what cudaGetDeviceCount answers
  int driver_version = 13000;
  int capability = 90;
  int processors = 4;
  size_t memory_bytes = size_t{4} << 30;
};
void pretend(const Machine& machine);

/// How often host code has waited for what the device computes: for a stream, or for a copy to the
/// host by the event behind it. The event of a copy to the device does not count.
size_t waits();

/// Puts host code on a stream that may use device memory: the fake libraries compute so.
void put_on_stream(cudaStream_t stream, std::function<void()> work);

}  // namespace cuda_emulator
