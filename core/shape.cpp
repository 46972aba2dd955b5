#include "core/shape.h"

#include <algorithm>

namespace tapeformer {

Shape broadcast_shapes(const char* operation, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t size_a = ia < 0 ? 1 : a[ia], size_b = ib < 0 ? 1 : b[ib];
    check(size_a == size_b || size_a == 1 || size_b == 1, operation,
          ": shapes do not broadcast: ", a, " and ", b);
    result.push_back(size_a == 1 ? size_b : size_a);
  }
  return result;
}

}  // namespace tapeformer
