// core/cuda/cublas.h repeats what a build need not have, NVIDIA's cublasLt.h. Where that is here
// too, this fails to compile when they differ.
#if __has_include(<cublasLt.h>)
#include "core/cuda/cublas.h"

#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

namespace tapeformer::cuda::cublas {
namespace {

static_assert(success == CUBLAS_STATUS_SUCCESS);
static_assert(real_f32 == CUDA_R_32F && real_f16 == CUDA_R_16F && real_bf16 == CUDA_R_16BF);
static_assert(compute_f32 == CUBLAS_COMPUTE_32F);
static_assert(not_transposed == CUBLAS_OP_N && transposed == CUBLAS_OP_T);
static_assert(epilogue_none == CUBLASLT_EPILOGUE_DEFAULT &&
              epilogue_bias == CUBLASLT_EPILOGUE_BIAS);

static_assert(desc_transpose_a == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(desc_transpose_b == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(desc_epilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(desc_bias == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(layout_batch_count == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(layout_batch_offset == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(preference_workspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(preference_reduction == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(reduction_in_compute_type == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(preference_alignment_a == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              preference_alignment_a + 1 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES &&
              preference_alignment_a + 2 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES &&
              preference_alignment_a + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

using Result = cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t) &&
              alignof(Algorithm) == alignof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Heuristic) == sizeof(Result) && alignof(Heuristic) == alignof(Result) &&
              offsetof(Heuristic, algorithm) == offsetof(Result, algo) &&
              offsetof(Heuristic, workspace_bytes) == offsetof(Result, workspaceSize) &&
              offsetof(Heuristic, state) == offsetof(Result, state) &&
              offsetof(Heuristic, waves) == offsetof(Result, wavesCount));

/// Whether one type is passed as the other is: both pointers, to what may be written or both not,
/// or numbers of one size and sign, an enumeration being one.
template <class Ours, class Theirs>
constexpr bool passed_alike() {
  using To = std::remove_pointer_t<Ours>;
  using TheirTo = std::remove_pointer_t<Theirs>;
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>)
    return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_const_v<To> == std::is_const_v<TheirTo> &&
           std::is_pointer_v<To> == std::is_pointer_v<TheirTo>;
  else
    return sizeof(Ours) == sizeof(Theirs) &&
           (std::is_enum_v<Theirs> || std::is_signed_v<Ours> == std::is_signed_v<Theirs>);
}

template <class R, class... Ours, class S, class... Theirs>
constexpr bool called_alike(R (*)(Ours...), S (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs))
    return passed_alike<R, S>() && (passed_alike<Ours, Theirs>() && ...);
  else
    return false;
}

#define TAPEFORMER_CUBLAS_CHECK(name, parameters)                      \
  static_assert(called_alike(static_cast<int(*) parameters>(nullptr),  \
                             static_cast<decltype(&::name)>(nullptr)), \
                #name " is called in another way than cublasLt.h says");
TAPEFORMER_CUBLAS_FUNCTIONS(TAPEFORMER_CUBLAS_CHECK)
#undef TAPEFORMER_CUBLAS_CHECK

}  // namespace
}  // namespace tapeformer::cuda::cublas
#endif
