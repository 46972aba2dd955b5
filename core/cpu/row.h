// Sums, maxima and writes over one row that lies in the cache: what norms, softmax and the loss are
// made of. The order of a sum depends on the row's length alone.
//
// The functions given to them are taken by value and inlined: otherwise compilers reload what the
// function holds in every turn of the loop and do not vectorise it.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/cpu/simd.h"
#include "core/tensor.h"

namespace tapeformer::cpu {

/// Sums are kept in this many lanes, several vector registers, because an addition takes a few
/// cycles and a single register would wait for its last one.
inline constexpr int row_lanes = 64;

/// Asks for n elements from p on, for writing unless T is const. Nothing where p is null.
template <class T>
TAPEFORMER_INLINE void row_fetch(T* p, int64_t n) {
  constexpr int64_t line = 64 / sizeof(T);  // elements in a cache line
  if (p)
    for (int64_t i = 0; i < n; i += line) __builtin_prefetch(p + i, !std::is_const_v<T>);
}

/// Calls f(i, lane) for i in [0, n) with lane = i mod row_lanes; no two lanes depend on each other.
/// `soon`: pointers to n elements each, or null, that are needed after this sweep. They are fetched
/// meanwhile: a sweep over cached elements leaves the memory idle, and even a store first waits for
/// what was there.
template <class F, class... Soon>
TAPEFORMER_INLINE void row_sweep(int64_t n, F f, Soon*... soon) {
  const int64_t whole = n / row_lanes * row_lanes;
  for (int64_t begin = 0; begin < whole; begin += row_lanes) {
    (row_fetch(soon ? soon + begin : nullptr, row_lanes), ...);
#pragma omp simd
    for (int lane = 0; lane < row_lanes; ++lane) f(begin + lane, lane);
  }
  const int rest = static_cast<int>(n - whole);
#pragma omp simd
  for (int lane = 0; lane < rest; ++lane) f(whole + lane, lane);
}

/// Combines the lanes into one value, in a tree. Without the pragmas some callers get it as a chain
/// of scalar operations, which takes longer than a short row.
template <class T, class F>
TAPEFORMER_INLINE T row_fold(const T* lanes, F combine) {
  T fold[16];
#pragma omp simd
  for (int i = 0; i < 16; ++i)
    fold[i] = combine(combine(lanes[i], lanes[i + 16]), combine(lanes[i + 32], lanes[i + 48]));
#pragma omp simd
  for (int i = 0; i < 8; ++i) fold[i] = combine(fold[i], fold[i + 8]);
#pragma omp simd
  for (int i = 0; i < 4; ++i) fold[i] = combine(fold[i], fold[i + 4]);
  return combine(combine(fold[0], fold[1]), combine(fold[2], fold[3]));
}

template <class T>
TAPEFORMER_INLINE T row_total(const T* lanes) {
  return row_fold(lanes, [](T a, T b) { return a + b; });
}

/// Sum of f(i) over [0, n). `soon` as for row_sweep.
template <class T, class F, class... Soon>
TAPEFORMER_INLINE T row_sum(int64_t n, F f, Soon*... soon) {
  T lanes[row_lanes] = {};
  const auto add = [&](int64_t i, int lane) { lanes[lane] += f(i); };
  row_sweep(n, add, soon...);
  return row_total(lanes);
}

/// The largest f(i); -inf for an empty row. NaN does not count.
template <class T, class F>
TAPEFORMER_INLINE T row_max(int64_t n, F f) {
  const auto larger = [](T a, T b) { return b > a ? b : a; };
  T lanes[row_lanes];
  for (T& lane : lanes) lane = -std::numeric_limits<T>::infinity();
  row_sweep(n, [&](int64_t i, int lane) { lanes[lane] = larger(lanes[lane], f(i)); });
  return row_fold(lanes, larger);
}

/// y[i] (+)= f(i) over [0, n).
template <class T, class F>
TAPEFORMER_INLINE void row_write(int64_t n, T* y, bool accumulate, F f) {
  if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] += f(i);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = f(i);
  }
}

/// The elements of an optional tensor; null when it was not given.
template <class T>
T* optional_data(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace tapeformer::cpu
