// Matrix products on the GPU.
#pragma once

#include "core/cuda/device.cuh"

namespace tapeformer::cuda {

/// Row-major matrices op(a) [m, k], op(b) [k, n] and c [m, n], `batch` of each, which lie a_step,
/// b_step and c_step elements apart. lda, ldb and ldc: elements between rows.
struct GemmShape {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  int64_t lda, ldb, ldc;
  int64_t batch = 1, a_step = 0, b_step = 0, c_step = 0;
  auto operator<=>(const GemmShape&) const = default;
};
/// c = alpha op(a) op(b) + beta c + bias [n].
struct Gemm : GemmShape {
  float alpha = 1, beta = 0;
  Tensor bias{};  // optional
};

/// a and b have one dtype; c may be f32 beside 16-bit ones. Throws where cuBLAS cannot be loaded.
void gemm(const Gemm& g, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace tapeformer::cuda
