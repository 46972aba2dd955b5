// Reductions on CUDA against the CPU in double.
#include <limits>

#include "kernel_check.h"

using namespace tapeformer;

namespace {

const Shape shapes[] = {{1}, {31}, {33, 5}, {3, 257, 2}, {2, 700, 33}, {5, 1, 3}, {2, 3, 40000}};

Shape without(const Shape& shape, int dim) {
  Shape result;
  for (int i = 0; i < shape.rank(); ++i)
    if (i != dim) result.push_back(shape[i]);
  return result;
}

}  // namespace

TEST_CASE("cuda_sums_over_each_dimension") {
  for (const Shape& shape : shapes)
    for (int dim = 0; dim < shape.rank(); ++dim) {
      INFO("shape " << shape << ", dim " << dim);
      const Shape rest = without(shape, dim);
      const double scale = 1.0 / static_cast<double>(shape[dim]);
      check_kernel("sum", {random_tensor(shape, 1)}, {rest},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::sum_forward(in[0], dim, scale, out[0]);
                   });
      check_kernel("sum_backward", {random_tensor(rest, 1)}, {shape},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::sum_backward(in[0], dim, 0.5, out[0]);
                   });
    }
}

TEST_CASE("cuda_maximum_is_the_first_of_the_largest") {
  for (const Shape& shape : {Shape{31}, Shape{33, 5}, Shape{3, 257, 2}})
    for (int dim = 0; dim < shape.rank(); ++dim) {
      const Tensor x = random_indices(shape.numel(), 9, 4).view(shape);  // many are equal
      const Tensor values = Tensor::empty(shape, DType::f64);
      kernels::copy(x, values);
      const Shape rest = without(shape, dim);
      check_kernel("max", {values}, {{rest, false}, {rest, DType::i32}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::max_forward(in[0], dim, out[0].tensor, out[1].tensor);
                   });
      const Tensor y = Tensor::empty(rest, DType::f64), index = Tensor::empty(rest, DType::i32);
      kernels::max_forward(values, dim, y, index);
      check_kernel("max_backward", {random_tensor(rest, 2), index}, {shape},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::max_backward(in[0], in[1], dim, out[0]);
                   });
    }
}

TEST_CASE("cuda_maximum_takes_nan") {
  const Tensor x = Tensor::from<float>({1, std::numeric_limits<float>::quiet_NaN(), 5});
  const Tensor y = Tensor::empty({}, DType::f32, Device::cuda);
  const Tensor index = Tensor::empty({}, DType::i32, Device::cuda);
  kernels::max_forward(x.to(Device::cuda), 0, y, index);
  CHECK(std::isnan(y.item()));
  CHECK(index.item() == 1);
}

TEST_CASE("cuda_sum_of_squares_and_clip_factor") {
  for (const int64_t n : {1, 257, 40001})
    check_kernel("sum_of_squares", {random_tensor({n}, 1)}, {{Shape{1}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::sum_of_squares(in[0], out[0].tensor);
                 });
  for (const double max_norm : {0.0, 1.0, 100.0})
    check_kernel("clip_factor", {{Tensor::full({1}, 90, DType::f64), true}},
                 {{Shape{1}, DType::f32}, {Shape{1}, DType::f32}},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::clip_factor(in[0], max_norm, 4, out[0].tensor, out[1].tensor);
                 });
}
