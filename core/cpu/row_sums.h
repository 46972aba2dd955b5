// Sums over the rows of a matrix, many side by side: the gradients of gains and shifts, and the
// moments of channels.
#pragma once

#include <algorithm>

#include "core/cpu/parallel.h"
#include "core/cpu/row.h"
#include "core/kernels.h"

namespace tapeformer::cpu {

/// `width` sums over rows. Every chunk of rows has sums of its own in the elements' type; they are
/// joined in order in double. The chunks depend on the number of rows alone, and are short enough
/// that a chunk's sum loses few digits.
template <class T>
class RowSums {
 public:
  RowSums(int64_t rows, int64_t width)
      : rows_(rows),
        width_(width),
        grain_(std::clamp<int64_t>((rows + 63) / 64, 16, 128)),
        chunks_((rows + grain_ - 1) / grain_),
        partials_(Tensor::empty({chunks_, width}, dtype_of<T>)) {}

  int64_t chunks() const { return chunks_; }
  int64_t begin_of(int64_t chunk) const { return chunk * grain_; }
  int64_t end_of(int64_t chunk) const { return std::min(rows_, (chunk + 1) * grain_); }
  /// [width]
  T* sums_of(int64_t chunk) const { return partials_.template data<T>() + chunk * width_; }

  /// Calls add(begin, end, sums) for every chunk of rows, with sums [width] of 0 to add to. A row
  /// costs as much as `cost` additions.
  template <class F>
  void add(int64_t cost, const F& add) const {
    parallel_for(chunks_, rows_ * cost >= parallel_threshold, [&](int64_t chunk) {
      T* sums = sums_of(chunk);
      std::fill_n(sums, width_, T(0));
      add(begin_of(chunk), end_of(chunk), sums);
    });
  }

  /// totals[i] (+)= sum first + i, for `count` of them.
  void join(int64_t first, int64_t count, T* totals, bool accumulate) const {
    constexpr int64_t block = 64;
    parallel_pieces(count, block, chunks_, [&](int64_t begin, int64_t end) {
      double total[block] = {};
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        const T* sums = sums_of(chunk) + first + begin;
        row_write(end - begin, total, true, [=](int64_t i) { return sums[i]; });
      }
      row_write(end - begin, totals + begin, accumulate,
                [from = total](int64_t i) { return static_cast<T>(from[i]); });
    });
  }
  void join(int64_t first, const Destination& d) const {
    if (d) join(first, d.tensor.numel(), d.tensor.template data<T>(), d.accumulate);
  }

 private:
  int64_t rows_, width_, grain_, chunks_;
  Tensor partials_;  // [chunks, width]
};

/// Rows that one thread takes at a time where rows do not depend on each other.
inline int64_t rows_per_piece(int64_t channels) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, channels));
}

}  // namespace tapeformer::cpu
