// Loops over cores. How work is cut depends on its size alone, never on the number of threads, so
// that results are the same bits on 1 and on 64 threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/threads.h"

namespace tapeformer::cpu {

/// Below this many elements of simple work a loop runs on one thread: waking the others costs more.
inline constexpr int64_t parallel_threshold = 16384;

/// Calls f(i) for i in [0, n), on several threads when `parallel`. The calls must be independent.
/// Throws what the first failing call threw: no exception may leave an OpenMP region by itself.
template <class F>
void parallel_for(int64_t n, bool parallel, const F& f) {
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

/// Calls f(begin, end) for pieces of [0, n) of `grain` each; several threads when the total work,
/// n * cost, is worth it.
template <class F>
void parallel_pieces(int64_t n, int64_t grain, int64_t cost, const F& f) {
  const int64_t pieces = (n + grain - 1) / grain;
  parallel_for(pieces, n * cost >= parallel_threshold,
               [&](int64_t i) { f(i * grain, std::min(n, (i + 1) * grain)); });
}

}  // namespace tapeformer::cpu
