// Rows of a table by index, and the sum of gradients back into the table.
#include <algorithm>
#include <cstring>

#include "core/cpu/parallel.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {

using namespace tapeformer::cpu;

void embedding_forward(const Tensor& table, const Tensor& indices, const Tensor& y) {
  const int64_t N = indices.numel(), C = table.dim(1);
  const size_t row_bytes = C * size_of(table.dtype());
  const int32_t* index = indices.data<int32_t>();
  const char* rows = static_cast<const char*>(table.raw());
  char* out = static_cast<char*>(y.raw());
  parallel_pieces(N, std::max<int64_t>(1, 8192 / std::max<int64_t>(C, 1)), C,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t n = begin; n < end; ++n)
                      std::memcpy(out + n * row_bytes, rows + index[n] * row_bytes, row_bytes);
                  });
}

// Several n may share an index. Each task owns a range of columns and walks all n in order: no two
// tasks touch the same number, and every sum has the order of n.
void embedding_backward(const Tensor& dy, const Tensor& indices, const Destination& dtable) {
  if (!dtable.accumulate) dtable.tensor.fill(0);
  dispatch_floating("embedding", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = indices.numel(), C = dy.dim(-1);
    const int32_t* index = indices.data<int32_t>();
    const T* from = dy.data<T>();
    auto* to = dtable.tensor.data<Wide<T>>();
    parallel_pieces(C, 64, N, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < N; ++n) {
        const T* row = from + n * C;
        auto* total = to + index[n] * C;
#pragma omp simd
        for (int64_t c = begin; c < end; ++c) total[c] += row[c];
      }
    });
  });
}

}  // namespace tapeformer::kernels::cpu
