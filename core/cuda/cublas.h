// The part of cuBLASLt that matrix products need, as function pointers: linked, the library would
// cost every program 0.4 s and 220 MB at its start, so it is loaded with the first product. The
// numbers are those of cublasLt.h, which a build need not have.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tapeformer::cuda::cublas {

using Handle = void*;  // opaque in the library as well
using MatmulDesc = void*;
using MatrixLayout = void*;
using Preference = void*;

inline constexpr int success = 0;
inline constexpr int real_f32 = 0, real_f16 = 2, real_bf16 = 14;  // cudaDataType_t
inline constexpr int compute_f32 = 68;                            // cublasComputeType_t
inline constexpr int32_t not_transposed = 0, transposed = 1;      // cublasOperation_t
inline constexpr uint32_t epilogue_none = 1, epilogue_bias = 4;   // cublasLtEpilogue_t

// cublasLtMatmulDescAttributes_t
inline constexpr int desc_transpose_a = 3, desc_transpose_b = 4, desc_epilogue = 7, desc_bias = 8;
// cublasLtMatrixLayoutAttribute_t
inline constexpr int layout_batch_count = 5, layout_batch_offset = 6;
// cublasLtMatmulPreferenceAttributes_t: the least alignment of A; B, C and D follow
inline constexpr int preference_workspace = 1, preference_reduction = 3, preference_alignment_a = 5;
inline constexpr uint32_t reduction_in_compute_type = 2;  // cublasLtReductionScheme_t

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace tapeformer::cuda::cublas

/// Calls X(name, parameters) for every function that is used. All return a cublasStatus_t.
#define TAPEFORMER_CUBLAS_FUNCTIONS(X)                                                      \
  X(cublasLtCreate, (Handle*))                                                              \
  X(cublasLtMatmulDescCreate, (MatmulDesc*, int compute_type, int scale_type))              \
  X(cublasLtMatmulDescDestroy, (MatmulDesc))                                                \
  X(cublasLtMatmulDescSetAttribute, (MatmulDesc, int attribute, const void*, size_t))       \
  X(cublasLtMatrixLayoutCreate,                                                             \
    (MatrixLayout*, int type, uint64_t rows, uint64_t columns, int64_t leading_dimension))  \
  X(cublasLtMatrixLayoutDestroy, (MatrixLayout))                                            \
  X(cublasLtMatrixLayoutSetAttribute, (MatrixLayout, int attribute, const void*, size_t))   \
  X(cublasLtMatmulPreferenceCreate, (Preference*))                                          \
  X(cublasLtMatmulPreferenceDestroy, (Preference))                                          \
  X(cublasLtMatmulPreferenceSetAttribute, (Preference, int attribute, const void*, size_t)) \
  X(cublasLtMatmulAlgoGetHeuristic,                                                         \
    (Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,    \
     Preference, int wanted, Heuristic*, int* found))                                       \
  X(cublasLtMatmul,                                                                         \
    (Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout, const void* b,     \
     MatrixLayout, const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout,    \
     const Algorithm*, void* workspace, size_t workspace_bytes, cudaStream_t))
