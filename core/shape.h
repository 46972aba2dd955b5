// A tensor's sizes, outermost dimension first, kept inline (no allocation).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <vector>

#include "core/check.h"

namespace tapeformer {

class Shape {
 public:
  static constexpr int max_rank = 6;

  /// A scalar: no dimensions, one element.
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(sizes.begin(), sizes.size()) {}
  explicit Shape(const std::vector<int64_t>& sizes) : Shape(sizes.data(), sizes.size()) {}
  /// Throws for more than six dimensions, negative sizes, or a product beyond int64_t.
  Shape(const int64_t* sizes, size_t rank) {
    check(rank <= max_rank, "shape: at most 6 dimensions, got ", rank);
    for (size_t i = 0; i < rank; ++i) push_back(sizes[i]);
  }

  int rank() const { return rank_; }
  int64_t numel() const { return numel_; }

  /// Size of dimension i; negative i counts from the end.
  int64_t operator[](int i) const { return sizes_[normalize(i)]; }

  /// The non-negative index of dimension i. Throws when there is no such dimension.
  int normalize(int i) const {
    const int index = i < 0 ? i + rank_ : i;
    check(index >= 0 && index < rank_, "shape ", *this, " has no dimension ", i);
    return index;
  }

  void push_back(int64_t size) {
    check(rank_ < max_rank, "shape: at most 6 dimensions");
    check(size >= 0, "shape: sizes must not be negative, got ", size);
    check(!__builtin_mul_overflow(numel_, size, &numel_), "shape: too many elements");
    sizes_[rank_++] = size;
  }

  /// The same shape with dimension i set to `size`.
  Shape with(int i, int64_t size) const {
    Shape result;
    for (int d = 0, at = normalize(i); d < rank_; ++d) result.push_back(d == at ? size : sizes_[d]);
    return result;
  }

  /// Dimensions [begin, end).
  Shape range(int begin, int end) const { return Shape(sizes_.data() + begin, end - begin); }

  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.sizes_[i] != b.sizes_[i]) return false;
    return true;
  }

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int i = 0; i < shape.rank_; ++i) out << (i ? ", " : "") << shape.sizes_[i];
    return out << ']';
  }

 private:
  std::array<int64_t, max_rank> sizes_{};
  int64_t numel_ = 1;
  int rank_ = 0;
};

/// A tensor's sizes seen around one dimension: [outer, n, inner].
struct Around {
  int64_t outer = 1, n = 1, inner = 1;
  Around(const Shape& shape, int dim) {
    for (int i = 0; i < shape.rank(); ++i) (i < dim ? outer : i == dim ? n : inner) *= shape[i];
  }
};

/// The shape of a (+) b under NumPy's broadcasting: aligned at the last dimension, a size of 1
/// stretches. Throws, naming `operation`, when the shapes do not fit.
Shape broadcast_shapes(const char* operation, const Shape& a, const Shape& b);

}  // namespace tapeformer
