// Reductions on CUDA against the CPU in double.
#include <limits>

#include "kernel_check.h"

using namespace tapeformer;

namespace {

const Shape shapes[] = {{1},          {31},        {33, 5},       {3, 257, 2},
                        {2, 700, 33}, {5, 1, 3},   {2, 3, 40000}, {2, 700, 8},
                        {1500, 72},   {3, 64, 512}};  // the last 16 bytes at a time

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

TEST_CASE("cuda_sums_have_the_same_bits_wherever_the_data_begins") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t width : {8, 72, 1024}) {
      INFO(dtype << ", width " << width);
      const Shape shape{700, width};
      const Tensor x = Tensor::empty(shape, dtype),
                   room = Tensor::zeros({shape.numel() + 64}, dtype);
      x.copy_from(random_tensor(shape, 1));
      const Tensor there = room.to(Device::cuda).rows(1, shape.numel() + 1).view(shape);
      there.copy_from(x);
      for (const int dim : {0, 1}) {
        const auto sum = [&](const Tensor& from) {
          const Tensor y = Tensor::empty({shape[1 - dim]}, DType::f32, Device::cuda);
          kernels::sum_forward(from, dim, 1, Destination{y});
          return y.to_vector<float>();
        };
        CHECK(sum(there) == sum(x.to(Device::cuda)));
      }
    }
}

TEST_CASE("cuda_maximum_is_the_first_of_the_largest") {
  for (const Shape& shape :
       {Shape{31}, Shape{33, 5}, Shape{3, 257, 2}, Shape{3, 40}, Shape{2, 1031}, Shape{2, 4104}})
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

TEST_CASE("cuda_maximum_takes_the_first_nan_and_minus_infinity") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  lowest = -std::numeric_limits<float>::infinity();
  for (const int64_t n : {3, 40, 2051}) {
    INFO("rows of " << n);
    const Tensor x = Tensor::full({2, n}, 5);
    x.rows(0, 1).fill(lowest);
    x.data<float>()[n + 1] = x.data<float>()[2 * n - 1] = nan;
    const Tensor y = Tensor::empty({2}, DType::f32, Device::cuda);
    const Tensor index = Tensor::empty({2}, DType::i32, Device::cuda);
    kernels::max_forward(x.to(Device::cuda), 1, y, index);
    CHECK(y.to_vector<float>()[0] == lowest);
    CHECK(std::isnan(y.to_vector<float>()[1]));
    CHECK(index.to_vector<int32_t>() == std::vector<int32_t>{0, 1});
  }
}

TEST_CASE("cuda_sum_of_squares_and_clip_factor") {
  for (const int64_t n : {1, 257, 40001})
    check_kernel("sum_of_squares", {random_tensor({n}, 1)}, {{Shape{1}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::sum_of_squares(in[0], out[0].tensor);
                 });
  for (const double max_norm : {0.0, 1.0, 100.0})
    check_kernel("clip_factor",
                 {{Tensor::full({1}, 90, DType::f64), true}, {random_tensor({3}, 1), true}},
                 {{Shape{1}, DType::f32}, {Shape{1}, DType::f32}},
                 [&](const Inputs& in, const Outputs& out) {
                   out[1].tensor.fill(1);
                   kernels::clip_factor(in[0], in[1], max_norm, 4, out[0].tensor, out[1].tensor);
                 });
}

TEST_CASE("cuda_clip_factor_is_nan_from_the_first_number_on_that_is_not_finite") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  inf = std::numeric_limits<float>::infinity();
  for (const Device device : {Device::cpu, Device::cuda}) {
    const auto one = [&](float x) { return Tensor::from<float>({x}).to(device); };
    const Tensor norm = one(0), factor = one(1);
    const auto factor_of = [&](float square, const std::vector<float>& losses) {
      kernels::clip_factor(one(square), Tensor::from(losses).to(device), 1, 1, norm, factor);
      return factor.item();
    };
    INFO(device);
    for (const auto& [square, loss] : {std::pair{nan, 2.0f}, {inf, 2.0f}, {4.0f, nan}, {4, -inf}}) {
      factor.fill(1);
      CHECK(factor_of(4, {1, 2, 3}) == Approx(0.5));
      CHECK(std::isnan(factor_of(square, {1, loss, 3})));
      CHECK(std::isnan(factor_of(4, {1, 2, 3})));
      CHECK(norm.item() == 2);
    }
  }
}
