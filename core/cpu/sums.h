// Sums over one dimension of [outer, n, inner], of values that are made on the fly. Every sum runs
// over fixed chunks of n in the elements' wide type, and the chunks are joined in order in double.
#pragma once

#include <algorithm>

#include "core/cpu/loops.h"

namespace tapeformer::cpu {

/// Elements of a row, and rows of a column, that are summed in one go.
inline constexpr int64_t row_chunk = 1024, column_chunk = 128;
/// Columns whose sums are kept in registers and first-level cache at a time.
inline constexpr int64_t column_block = 512;

/// y[o] (+)= scale * sum over i < n of value(o * n + i, o): sums along memory.
template <class W, class Y, class F>
void sum_rows(int64_t outer, int64_t n, W scale, Y* y, bool accumulate, const F& value) {
  const int64_t chunks = std::max<int64_t>(1, (n + row_chunk - 1) / row_chunk);
  const auto sum_chunk = [&](int64_t o, int64_t chunk) {
    const int64_t begin = o * n + chunk * row_chunk, end = std::min((o + 1) * n, begin + row_chunk);
    const F local = value;  // see assign_range
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += local(i, o);
    return sum;
  };
  const auto finish = [&](int64_t o, double sum) {
    const W result = static_cast<W>(scale * sum);
    y[o] = accumulate ? y[o] + result : result;
  };
  if (outer > 1 || chunks == 1) {
    const int64_t rows = std::max<int64_t>(1, piece / std::max<int64_t>(n, 1));
    return parallel_pieces(outer, rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += sum_chunk(o, chunk);
        finish(o, sum);
      }
    });
  }
  const Tensor partials = Tensor::empty({chunks}, dtype_of<W>);
  W* partial = partials.data<W>();
  parallel_pieces(chunks, piece / row_chunk, row_chunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) partial[chunk] = sum_chunk(0, chunk);
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk];
  finish(0, sum);
}

/// y[j] (+)= scale * sums[j] for j < n.
template <class W, class Y>
void scale_sums(const W* sums, int64_t n, W scale, Y* y, bool accumulate) {
  assign_range(0, n, y, accumulate, [=](int64_t j) { return scale * sums[j]; });
}

/// y[j] (+)= scale * sum over `chunks` of partial[chunk * n + j], for j < n.
template <class W, class Y>
void join_chunks(const W* partial, int64_t chunks, int64_t n, W scale, Y* y, bool accumulate) {
  parallel_pieces(n, 1024, chunks, [=](int64_t begin, int64_t end) {
    assign_range(begin, end, y, accumulate, [=](int64_t j) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * n + j];
      return static_cast<W>(scale * sum);
    });
  });
}

/// y[k] (+)= scale * sum over i < n of value((o * n + i) * inner + j, k), with k = o * inner + j:
/// sums across memory.
template <class W, class Y, class F>
void sum_columns(int64_t outer, int64_t n, int64_t inner, W scale, Y* y, bool accumulate,
                 const F& value) {
  const int64_t chunks = std::max<int64_t>(1, (n + column_chunk - 1) / column_chunk);
  const int64_t blocks = (inner + column_block - 1) / column_block;
  const Tensor partials = Tensor::empty({chunks > 1 ? chunks * outer * inner : 0}, dtype_of<W>);
  W* partial = partials.data<W>();
  // One task: one block of columns over one chunk of rows.
  const auto sum_block = [&](int64_t task) {
    const int64_t block = task % blocks, o = task / blocks % outer, chunk = task / blocks / outer;
    const int64_t first = block * column_block, width = std::min(column_block, inner - first);
    const F local = value;
    W sums[column_block] = {};
    const int64_t out = o * inner + first, end = std::min(n, (chunk + 1) * column_chunk);
    const auto at = [&](int64_t i) { return (o * n + i) * inner + first; };
    int64_t i = chunk * column_chunk;
    for (; i + 4 <= end; i += 4) {  // four rows at a time spare the sums' trips to the cache
      const int64_t r0 = at(i), r1 = r0 + inner, r2 = r1 + inner, r3 = r2 + inner;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j)
        sums[j] += (local(r0 + j, out + j) + local(r1 + j, out + j)) +
                   (local(r2 + j, out + j) + local(r3 + j, out + j));
    }
    for (; i < end; ++i) {
      const int64_t row = at(i);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) sums[j] += local(row + j, out + j);
    }
    if (chunks == 1)
      scale_sums(sums, width, scale, y + out, accumulate);
    else
      std::copy(sums, sums + width, partial + chunk * outer * inner + out);
  };
  parallel_for(chunks * outer * blocks, outer * n * inner >= parallel_threshold, sum_block);
  if (chunks > 1) join_chunks(partial, chunks, outer * inner, scale, y, accumulate);
}

/// The sum over n of values on [outer, n, inner], along or across memory, in y of type Y. value(i,
/// k), of type Wide<Y>, is the value at index i of the whole, which belongs to element k of y.
template <class Y, class F>
void sum_around(int64_t outer, int64_t n, int64_t inner, double scale, const Destination& y,
                const F& value) {
  Y* out = y.tensor.data<Y>();
  if (inner == 1)
    sum_rows(outer, n, static_cast<Wide<Y>>(scale), out, y.accumulate, value);
  else
    sum_columns(outer, n, inner, static_cast<Wide<Y>>(scale), out, y.accumulate, value);
}

}  // namespace tapeformer::cpu
