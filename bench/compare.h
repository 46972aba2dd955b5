// Measures one piece of code beside another in the same run, alternating, so that a slow moment of
// the machine meets both.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "autograd/ops.h"
#include "bench/machine.h"

namespace tapeformer::bench {

struct Comparison {
  double ours, other, ratio;  // milliseconds, and the median of ours / other
};

/// Rounds of f and g for about `budget` milliseconds, five at least, after one that does not count.
template <class F, class G>
Comparison compare(F&& f, G&& g, double budget = 200) {
  f();
  g();
  std::vector<double> ours, others, ratios;
  for (const auto start = Clock::now(); ours.size() < 5 || milliseconds_since(start) < budget;) {
    ours.push_back(milliseconds(f));
    others.push_back(milliseconds(g));
    ratios.push_back(ours.back() / others.back());
  }
  return {median(ours), median(others), median(ratios)};
}

inline void print_heading(const char* what, const char* ours, const char* other) {
  std::printf("\n%-46s %14s %14s %7s\n", what, ours, other, "ratio");
}
inline void print_line(const std::string& what, const Comparison& c) {
  std::printf("%-46s %11.3f ms %11.3f ms %7.2f\n", what.c_str(), c.ours, c.other, c.ratio);
}

inline Tensor random_tensor(const Shape& shape) {
  const Tensor tensor = Tensor::empty(shape);
  kernels::fill_normal(tensor, 0, 1, RandomKey{1});
  return tensor;
}
inline Tensor random_leaf(const Shape& shape) { return requires_gradient(random_tensor(shape)); }
inline Tensor random_indices(const Shape& shape, int64_t below) {
  const Tensor tensor = Tensor::empty(shape, DType::i32);
  Generator random({1, Purpose::batches});
  for (int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<int32_t>()[i] = static_cast<int32_t>(random.below(static_cast<uint32_t>(below)));
  return tensor;
}

/// An expression, run forward and then backward from a fixed gradient when called.
class ForwardBackward {
 public:
  ForwardBackward(std::vector<Tensor> leaves, std::function<Tensor()> expression)
      : leaves_(std::move(leaves)), expression_(std::move(expression)) {}

  void operator()() {
    for (const Tensor& leaf : leaves_) zero_gradient(leaf);
    Tape tape;
    const Tensor y = expression_();
    if (!dy_.defined()) dy_ = random_tensor(y.shape());
    tape.backward_from(std::span(&y, 1), std::span(&dy_, 1));
  }

 private:
  std::vector<Tensor> leaves_;
  std::function<Tensor()> expression_;
  Tensor dy_;
};

}  // namespace tapeformer::bench
