#include "core/cpu/parallel.h"

#include <algorithm>
#include <exception>

#include "core/threads.h"

namespace tapeformer::cpu {

void parallel_for(int64_t n, bool parallel, FunctionRef<int64_t> f) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), n));
  if (!parallel || threads < 2) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) {
    try {
      f(i);
    } catch (...) {
#pragma omp critical(tapeformer_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void parallel_pieces(int64_t n, int64_t grain, int64_t cost, FunctionRef<int64_t, int64_t> f) {
  const int64_t pieces = (n + grain - 1) / grain;
  parallel_for(pieces, n * cost >= parallel_threshold,
               [&](int64_t i) { f(i * grain, std::min(n, (i + 1) * grain)); });
}

}  // namespace tapeformer::cpu
