// A stream and a buffer of floats on the emulated device, for the tests of the emulator.
#pragma once

#include <cuda_runtime_api.h>

#include <numeric>
#include <vector>

namespace cuda_emulator {

struct Stream {
  Stream() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(stream); }
  operator cudaStream_t() const { return stream; }
  cudaStream_t stream = nullptr;
};

struct DeviceFloats {
  explicit DeviceFloats(size_t n) : n(n) {
    cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(float));
  }
  DeviceFloats(const std::vector<float>& values, cudaStream_t stream)
      : DeviceFloats(values.size()) {
    cudaMemcpyAsync(data, values.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
  }
  ~DeviceFloats() { cudaFree(data); }
  std::vector<float> read(cudaStream_t stream) const {
    std::vector<float> values(n);
    cudaMemcpyAsync(values.data(), data, n * sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return values;
  }
  float* data = nullptr;
  size_t n;
};

/// 1, 2, ... n.
inline std::vector<float> counted(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

}  // namespace cuda_emulator
