// Walking a result and its operands together under NumPy's broadcasting.
#pragma once

#include <algorithm>
#include <array>

#include "core/cpu/loops.h"

namespace tapeformer::cpu {

/// How N operands are read while a result is written in order. Neighbouring dimensions that every
/// operand walks alike are merged, sizes of 1 are dropped: equal shapes leave one dimension,
/// [B, T, C] with [C] two. In the innermost dimension a stride is 1, or 0 where the operand
/// repeats.
template <int N>
struct Broadcast {
  int rank = 0;
  std::array<int64_t, Shape::max_rank> sizes{1};                  // innermost first
  std::array<std::array<int64_t, Shape::max_rank>, N> strides{};  // of each operand

  Broadcast(const Shape& result, const std::array<const Shape*, N>& operands) {
    std::array<int64_t, N> walked;  // elements of each operand in the dimensions so far
    walked.fill(1);
    for (int back = 1; back <= result.rank(); ++back) {
      const int64_t size = result[-back];
      std::array<int64_t, N> stride{};
      for (int k = 0; k < N; ++k)
        if (back <= operands[k]->rank() && (*operands[k])[-back] != 1) {
          stride[k] = walked[k];
          walked[k] *= size;
        }
      if (size != 1) append(size, stride);
    }
    if (rank == 0) rank = 1;  // one element
  }

  /// Calls f(at, count, offsets) for the runs of the innermost dimension that make up elements
  /// [begin, end) of the result: `count` elements from `at` on, operand k from offsets[k] on.
  template <class F>
  void for_each_run(int64_t begin, int64_t end, const F& f) const {
    std::array<int64_t, Shape::max_rank> position{};
    std::array<int64_t, N> offsets{};
    for (int64_t d = 0, rest = begin; d < rank; ++d) {
      position[d] = rest % sizes[d];
      rest /= sizes[d];
      for (int k = 0; k < N; ++k) offsets[k] += position[d] * strides[k][d];
    }
    for (int64_t at = begin; at < end;) {
      const int64_t count = std::min(sizes[0] - position[0], end - at);
      f(at, count, offsets);
      at += count;
      position[0] += count;
      for (int k = 0; k < N; ++k) offsets[k] += count * strides[k][0];
      for (int d = 0; d + 1 < rank && position[d] == sizes[d]; ++d) {  // carry
        position[d] = 0;
        ++position[d + 1];
        for (int k = 0; k < N; ++k) offsets[k] += strides[k][d + 1] - sizes[d] * strides[k][d];
      }
    }
  }

 private:
  void append(int64_t size, const std::array<int64_t, N>& stride) {
    bool merge = rank > 0;
    for (int k = 0; k < N && merge; ++k)
      merge = stride[k] == strides[k][rank - 1] * sizes[rank - 1];
    if (merge) {
      sizes[rank - 1] *= size;
      return;
    }
    sizes[rank] = size;
    for (int k = 0; k < N; ++k) strides[k][rank] = stride[k];
    ++rank;
  }
};

/// y[i] (+)= f(i, ia, ib), where ia and ib are the indices of the two operands that belong to i.
template <class T, class F>
void assign_broadcast(const Destination& y, int64_t cost, const Shape& a, const Shape& b,
                      const F& f) {
  T* out = y.tensor.data<T>();
  const Broadcast<2> walk(y.tensor.shape(), {&a, &b});
  const bool a_moves = walk.strides[0][0] != 0, b_moves = walk.strides[1][0] != 0;
  parallel_pieces(y.tensor.numel(), piece, cost, [&](int64_t begin, int64_t end) {
    walk.for_each_run(begin, end, [&](int64_t at, int64_t count, const auto& offsets) {
      const int64_t ia = offsets[0], ib = offsets[1];
      // The strides are made constants, so that each of the three loops vectorises.
      if (a_moves && b_moves)
        assign_range(0, count, out + at, y.accumulate,
                     [=](int64_t j) { return f(at + j, ia + j, ib + j); });
      else if (a_moves)
        assign_range(0, count, out + at, y.accumulate,
                     [=](int64_t j) { return f(at + j, ia + j, ib); });
      else
        assign_range(0, count, out + at, y.accumulate,
                     [=](int64_t j) { return f(at + j, ia, ib + j); });
    });
  });
}

}  // namespace tapeformer::cpu
