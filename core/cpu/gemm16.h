// Matrix products of 16-bit matrices on raw memory, summed in float. gemm(), gemm_tiled() and
// gemm_tile() of core/cpu/gemm.h take them too.
#pragma once

#include "core/cpu/gemm.h"
#include "core/half.h"

namespace tapeformer::cpu {

/// How bf16 matrices are multiplied. All read bf16 and sum in float; they differ in speed, in the
/// order of their sums, and in that `dot` takes denormal inputs and sums for zero.
enum class Bf16Way {
  dot,           // AVX512-BF16: two products per lane and instruction
  multiply_add,  // AVX-512: both matrices become float while they are packed
  convert        // any processor: blocks become float, and OpenBLAS multiplies them
};
bool available(Bf16Way way);
/// The fastest on this processor, by what it is and not by measuring, so that it never changes.
Bf16Way bf16_way();

/// c [m, n] = alpha op(a) op(b) + beta c on the calling thread. C is float or the type of a and b,
/// to which it is rounded once, after the whole sum.
template <class C>
void gemm_serial(const Gemm& gemm, const bf16* a, const bf16* b, C* c, Bf16Way way = bf16_way());
/// f16 matrices become float in blocks, and OpenBLAS multiplies them.
template <class C>
void gemm_serial(const Gemm& gemm, const f16* a, const f16* b, C* c);

}  // namespace tapeformer::cpu
