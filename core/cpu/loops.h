// Loops over the elements of contiguous tensors, shared by the element-wise kernels.
#pragma once

#include "core/cpu/parallel.h"
#include "core/kernels.h"

namespace tapeformer::cpu {

/// Elements per piece of an element-wise loop.
inline constexpr int64_t piece = 16384;

/// Calls f(T{}) for every dtype: all elements can be copied and added.
template <class F>
void dispatch_number(const char* operation, DType dtype, F&& f) {
  if (dtype == DType::i32) return f(int32_t{});
  dispatch_floating(operation, dtype, f);
}

/// out[i] (+)= f(i) for i in [begin, end). f comes by value and should capture by value: behind a
/// reference its pointers would be read anew for every element.
template <class T, class F>
inline void assign_range(int64_t begin, int64_t end, T* out, bool accumulate, const F f) {
  if (accumulate) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] += f(i);
  } else {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = f(i);
  }
}

/// y[i] (+)= f(i) for every element of y. `cost`: work per element, 1 for an addition.
template <class T, class F>
void assign_each(const Destination& y, int64_t cost, const F& f) {
  T* out = y.tensor.data<T>();
  parallel_pieces(y.tensor.numel(), piece, cost, [&](int64_t begin, int64_t end) {
    assign_range(begin, end, out, y.accumulate, f);
  });
}
template <class T, class F>
void assign_each(const Tensor& y, int64_t cost, const F& f) {
  T* out = y.data<T>();
  parallel_pieces(y.numel(), piece, cost,
                  [&](int64_t begin, int64_t end) { assign_range(begin, end, out, false, f); });
}

}  // namespace tapeformer::cpu
