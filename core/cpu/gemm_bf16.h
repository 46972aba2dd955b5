// Matrix products of bf16 matrices on raw memory, summed in float. As core/cpu/gemm.h: row-major,
// serial products on tiles that depend on the shape alone, so results have the same bits on any
// number of threads.
#pragma once

#include "core/cpu/bf16.h"
#include "core/cpu/gemm.h"

namespace tapeformer::cpu {

/// How a tile is multiplied. All read bf16 and sum in float; they differ in speed, in the order of
/// their sums, and in that `dot` takes denormal inputs and sums for zero.
enum class Bf16Way {
  dot,           // AVX512-BF16: two products per lane and instruction
  multiply_add,  // AVX-512: both matrices become float while they are packed
  convert        // any processor: blocks become float, and OpenBLAS multiplies them
};
bool available(Bf16Way way);
/// The fastest on this processor, by what it is and not by measuring, so that it never changes.
Bf16Way bf16_way();

/// c [m, n] = alpha op(a) op(b) + beta c on the calling thread. C is float or bf16, which is
/// rounded once, after the whole sum.
template <class C>
void gemm_serial(const Gemm& gemm, const bf16* a, const bf16* b, C* c, Bf16Way way = bf16_way());

/// The part of the product that lies in `tile`; a, b, c point to the whole matrices.
template <class C>
void gemm_tile(Gemm gemm, const Tile& tile, const bf16* a, const bf16* b, C* c,
               Bf16Way way = bf16_way()) {
  a += tile.row * (gemm.transpose_a ? 1 : gemm.lda);
  b += tile.column * (gemm.transpose_b ? gemm.ldb : 1);
  c += tile.row * gemm.ldc + tile.column;
  gemm.m = tile.row_end - tile.row;
  gemm.n = tile.column_end - tile.column;
  gemm_serial(gemm, a, b, c, way);
}

/// Tile by tile over the threads, calling after_tile(tile) right after each tile's product.
template <class C, class F>
void gemm_tiled(const Gemm& gemm, const bf16* a, const bf16* b, C* c, const F& after_tile,
                Bf16Way way = bf16_way()) {
  check_gemm(gemm);
  const Tiling tiling = tiling_of(gemm.m, gemm.n, gemm.k);
  parallel_for(tiling.count(), true, [&](int64_t i) {
    gemm_tile(gemm, tiling[i], a, b, c, way);
    after_tile(tiling[i]);
  });
}
template <class C>
void gemm(const Gemm& gemm, const bf16* a, const bf16* b, C* c, Bf16Way way = bf16_way()) {
  gemm_tiled(
      gemm, a, b, c, [](const Tile&) {}, way);
}

}  // namespace tapeformer::cpu
