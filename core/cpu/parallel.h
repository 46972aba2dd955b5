// Loops over cores. How work is cut depends on its size alone, never on the number of threads, so
// that results are the same bits on 1 and on 64 threads.
#pragma once

#include <cstdint>

namespace tapeformer::cpu {

/// Below this many elements of simple work a loop runs on one thread: waking the others costs more.
inline constexpr int64_t parallel_threshold = 16384;

/// Refers to a function while it is called. The loops below are compiled once for all functions,
/// and each function once: inlined into the loops, the kernels took twice as long to compile.
template <class... Args>
class FunctionRef {
 public:
  template <class F>
  FunctionRef(const F& f)
      : f_(&f), call_([](const void* f, Args... args) { (*static_cast<const F*>(f))(args...); }) {}
  void operator()(Args... args) const { call_(f_, args...); }

 private:
  const void* f_;
  void (*call_)(const void*, Args...);
};

/// Calls f(i) for i in [0, n), on several threads when `parallel`. The calls must be independent.
/// Throws what the first failing call threw: no exception may leave an OpenMP region by itself.
void parallel_for(int64_t n, bool parallel, FunctionRef<int64_t> f);

/// Calls f(begin, end) for pieces of [0, n) of `grain` each; several threads when the total work,
/// n * cost, is worth it.
void parallel_pieces(int64_t n, int64_t grain, int64_t cost, FunctionRef<int64_t, int64_t> f);

}  // namespace tapeformer::cpu
