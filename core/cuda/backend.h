// What core asks of the CUDA backend besides kernels: memory, copies and the device itself. Without
// the backend there are no definitions, see TAPEFORMER_CUDA_PART.
#pragma once

#include <cstddef>
#include <string>

#include "core/device.h"

namespace tapeformer::cuda {

/// Why GPU `index`, below 0 the one that is or would be in use, cannot be used, in one sentence;
/// empty when it can.
TAPEFORMER_CUDA_PART std::string why_not(int index);
/// Computes on this GPU from now on. Throws when there is none of that index, or when another one
/// is in use already.
TAPEFORMER_CUDA_PART void use_gpu(int index);
TAPEFORMER_CUDA_PART void synchronize();

/// Device memory, or null when there is not enough. Throws when there is no GPU to use.
TAPEFORMER_CUDA_PART void* allocate(size_t bytes);
/// Waits until the GPU no longer uses it.
TAPEFORMER_CUDA_PART void release(void* data);
/// Sizes of buffers are multiples of this many bytes. 1: each buffer is new and ends where it was
/// asked to, so that a tool can watch its end.
TAPEFORMER_CUDA_PART size_t allocation_unit();
/// Bytes that the GPU has left.
TAPEFORMER_CUDA_PART size_t free_bytes();

/// Sets every byte.
TAPEFORMER_CUDA_PART void fill_bytes(void* data, int value, size_t bytes);
/// Copies when the kernels before it are done. The source may be changed at once.
TAPEFORMER_CUDA_PART void copy_to_device(void* to, const void* from, size_t bytes);
/// Waits for the kernels before it and for the copy.
TAPEFORMER_CUDA_PART void copy_to_host(void* to, const void* from, size_t bytes);

/// A copy to the host that is under way.
struct Download;
/// Starts one, which comes after the kernels before it. Every one has to be dropped.
TAPEFORMER_CUDA_PART Download* start_download(const void* from, size_t bytes);
/// Waits for it, not for the kernels after it, and puts its bytes to `to`.
TAPEFORMER_CUDA_PART void finish_download(Download* download, void* to);
TAPEFORMER_CUDA_PART void drop_download(Download* download);

/// Whether this program has the backend at all.
inline bool built() {
#ifdef TAPEFORMER_CUDA
  return true;
#else
  if constexpr (knows_cuda) return &why_not != nullptr;
  return false;
#endif
}

}  // namespace tapeformer::cuda
