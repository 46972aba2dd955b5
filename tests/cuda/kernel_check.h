// Runs a kernel on the GPU, an emulated one in most builds, in f32, bf16 and f16 and in three
// orders of threads, and with each of its tensors where no pack of 16 bytes may begin; and compares
// it with the CPU's kernel in double.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

namespace tapeformer {

/// One tensor of a call: its values in f64 (or i32, which stays i32).
struct Argument {
  Argument(const Tensor& values, bool statistic = false) : values(values), statistic(statistic) {}
  Tensor values;
  bool statistic;  // in f32 whatever the others are in, as means are
};

/// What a kernel writes.
struct Result {
  Result(const Shape& shape, bool adds = true) : shape(shape), adds(adds) {}
  /// Statistics (f32) and indices (i32) are never added to.
  Result(const Shape& shape, DType dtype) : shape(shape), adds(false), dtype(dtype) {}
  Shape shape;
  bool adds;  // whether the kernel can add to it
  DType dtype = DType::f64;
};

using Inputs = std::vector<Tensor>;
using Outputs = std::vector<Destination>;
using Call = std::function<void(const Inputs&, const Outputs&)>;

/// How far a result may be from that in double, relative to max(1, |double|).
struct Tolerance {
  Tolerance(double f32 = 1e-5, double roundings = 0) : f32(f32), roundings(roundings) {}
  double f32;        // in f32, and four times that in 16 bits
  double roundings;  // in 16 bits: how often a number on the way is rounded; the result is anyway
};

/// Checks a kernel's results in all settings.
void check_kernel(const std::string& name, const std::vector<Argument>& arguments,
                  const std::vector<Result>& results, const Call& call,
                  const Tolerance& tolerance = {});

/// [n] whole numbers in [0, below).
Tensor random_indices(int64_t n, int32_t below, uint64_t seed);

}  // namespace tapeformer
