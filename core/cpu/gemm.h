// Matrix products on raw memory: OpenBLAS, called single-threaded on tiles, under our own loop over
// the tiles. One pool of threads serves the whole library, work on a tile's result can follow while
// it is in cache, and tiles depend on the shape alone, so results have the same bits on any number
// of threads. All matrices are row-major.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "core/cpu/parallel.h"

namespace tapeformer::cpu {

/// c [m, n] = alpha op(a) op(b) + beta c, where op(a) is [m, k] and op(b) is [k, n]. With beta 0
/// what c held does not matter.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one stored row to the next
  double alpha = 1, beta = 0;
};

/// Makes OpenBLAS ready at the first call. Throws when the one at hand is unfit. To be called
/// before a parallel region (which must not throw) that calls gemm_serial.
void prepare_gemm();
/// Throws when k or a distance between rows is beyond what BLAS takes.
void check_gemm(const Gemm& gemm);

/// On the calling thread, as one call. T is float or double.
template <std::floating_point T>
void gemm_serial(const Gemm& gemm, const T* a, const T* b, T* c);
/// As one call that OpenBLAS splits over its own threads: for comparison only.
template <class T>
void gemm_whole(const Gemm& gemm, const T* a, const T* b, T* c, int threads);

/// Rows [row, row_end) and columns [column, column_end) of a product.
struct Tile {
  int64_t row, row_end, column, column_end;
};

/// How a product is cut.
struct Tiling {
  int64_t m, n, rows, columns;  // of the product; of a tile

  int64_t count() const { return down() * across(); }
  int64_t down() const { return (m + rows - 1) / rows; }
  int64_t across() const { return (n + columns - 1) / columns; }
  Tile operator[](int64_t i) const {
    const int64_t row = i % down() * rows, column = i / down() * columns;
    return {row, std::min(m, row + rows), column, std::min(n, column + columns)};
  }
};
Tiling tiling_of(int64_t m, int64_t n, int64_t k);

/// Whether `batch` products are worth more than one thread.
bool worth_threads(int64_t batch, int64_t m, int64_t n, int64_t k);

/// The part of the product that lies in `tile`; a, b, c point to the whole matrices. `way` is
/// empty, or the last argument of the 16-bit gemm_serial() (core/cpu/gemm16.h).
template <class T, class C, class... Way>
void gemm_tile(Gemm gemm, const Tile& tile, const T* a, const T* b, C* c, Way... way) {
  a += tile.row * (gemm.transpose_a ? 1 : gemm.lda);
  b += tile.column * (gemm.transpose_b ? gemm.ldb : 1);
  c += tile.row * gemm.ldc + tile.column;
  gemm.m = tile.row_end - tile.row;
  gemm.n = tile.column_end - tile.column;
  gemm_serial(gemm, a, b, c, way...);
}

/// Tile by tile over the threads, calling after_tile(tile) right after each tile's product.
template <class T, class C, class F, class... Way>
void gemm_tiled(const Gemm& gemm, const T* a, const T* b, C* c, const F& after_tile, Way... way) {
  check_gemm(gemm);
  const Tiling tiling = tiling_of(gemm.m, gemm.n, gemm.k);
  parallel_for(tiling.count(), true, [&](int64_t i) {
    gemm_tile(gemm, tiling[i], a, b, c, way...);
    after_tile(tiling[i]);
  });
}
template <class T, class C, class... Way>
void gemm(const Gemm& gemm, const T* a, const T* b, C* c, Way... way) {
  gemm_tiled(
      gemm, a, b, c, [](const Tile&) {}, way...);
}

}  // namespace tapeformer::cpu
