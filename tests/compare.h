// Comparing tensors in tests, and running one thing on one thread and on two.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "core/threads.h"

namespace tapeformer {

/// The elements of a tensor of any floating dtype.
inline std::vector<double> values_of(const Tensor& x) {
  const Tensor wide = Tensor::empty(x.shape(), DType::f64);
  wide.copy_from(x);
  return wide.to_vector<double>();
}

/// Largest |a - b| / max(1, |b|); infinite where a NaN stands or the numbers of elements differ.
inline double largest_error(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i]));
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}
inline double largest_error(const Tensor& a, const std::vector<double>& b) {
  return largest_error(values_of(a), b);
}
inline double largest_error(const Tensor& a, const Tensor& b) {
  return largest_error(values_of(a), values_of(b));
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// True when f's results are the same bits on one, two and three threads.
inline bool threads_do_not_matter(const std::function<std::vector<Tensor>()>& f) {
  const int before = num_threads();
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    results.push_back(f());
  }
  set_num_threads(before);
  return std::ranges::all_of(results, [&](const std::vector<Tensor>& result) {
    return std::ranges::equal(result, results[0], same_bits);
  });
}

}  // namespace tapeformer
