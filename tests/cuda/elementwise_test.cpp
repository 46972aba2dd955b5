// Element-wise, broadcasting, random and shape kernels on CUDA against the CPU in double.
#include "kernel_check.h"
#include "tests/compare.h"

using namespace tapeformer;

namespace {
constexpr int64_t odd = 1037;             // several blocks, the last one not full
constexpr int64_t sizes[] = {odd, 1040};  // of the second, 16 bytes at a time are read and written
}  // namespace

TEST_CASE("cuda_unary_functions_and_their_gradients") {
  using kernels::Unary;
  for (const Unary f : {Unary::exp, Unary::log, Unary::sqrt, Unary::tanh, Unary::sigmoid,
                        Unary::relu, Unary::gelu, Unary::gelu_tanh, Unary::silu}) {
    for (const int64_t n : sizes) {
      const bool positive = f == Unary::log || f == Unary::sqrt;
      const Tensor x = positive ? uniform_tensor({n}, 0.3, 3, 1) : random_tensor({n}, 1);
      const Tensor y = Tensor::empty({n}, DType::f64);
      kernels::unary_forward(x, y, f);
      check_kernel("unary", {x}, {{Shape{n}, false}}, [&](const Inputs& in, const Outputs& out) {
        kernels::unary_forward(in[0], out[0].tensor, f);
      });
      check_kernel("unary_backward", {random_tensor({n}, 2), x, y}, {Shape{n}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::unary_backward(in[0], in[1], in[2], f, out[0]);
                   });
    }
  }
}

TEST_CASE("cuda_gates_are_0_or_1_far_from_zero") {
  using kernels::Unary;
  const std::vector<double> far = {-1000, -100, -89, -88, -87, 87, 88, 89, 100, 1000};
  const Tensor x = Tensor::from(far), y = x.empty_like(),
               dy = Tensor::full(x.shape(), 1, DType::f64);
  for (const Unary f : {Unary::sigmoid, Unary::gelu_tanh, Unary::silu}) {
    kernels::unary_forward(x, y, f);
    check_kernel("unary", {x}, {{x.shape(), false}}, [&](const Inputs& in, const Outputs& out) {
      kernels::unary_forward(in[0], out[0].tensor, f);
    });
    check_kernel("unary_backward", {dy, x, y}, {{x.shape(), false}},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::unary_backward(in[0], in[1], in[2], f, out[0]);
                 });
  }
}

TEST_CASE("cuda_affine_powers_and_copies") {
  const Tensor x = uniform_tensor({odd}, 0.5, 2, 1), dy = random_tensor({odd}, 2);
  for (const double exponent : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, -2.0, 1.7}) {
    check_kernel("power", {x}, {{Shape{odd}, false}}, [&](const Inputs& in, const Outputs& out) {
      kernels::power_forward(in[0], exponent, out[0].tensor);
    });
    check_kernel(
        "power_backward", {dy, x}, {Shape{odd}},
        [&](const Inputs& in, const Outputs& out) {
          kernels::power_backward(in[0], in[1], exponent, out[0]);
        },
        3e-5);
  }
  for (const int64_t n : sizes) {
    const Tensor some = random_tensor({n}, 3), whole = random_indices(n, 100, 3);
    check_kernel("affine", {some}, {Shape{n}}, [](const Inputs& in, const Outputs& out) {
      kernels::affine(in[0], -1.5, 0.25, out[0]);
    });
    check_kernel("copy", {some}, {{Shape{n}, false}, {Shape{n}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::copy(in[0], out[0].tensor);
                   kernels::copy(in[0], out[1].tensor);
                 });
    check_kernel("integers", {whole}, {{Shape{n}, DType::i32}, {Shape{n}, false}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::copy(in[0], out[0].tensor);
                   kernels::copy(in[0], out[1].tensor);
                 });
  }
  check_kernel("fill", {}, {{Shape{odd}, false}},
               [](const Inputs&, const Outputs& out) { kernels::fill(out[0].tensor, 1.25); });
}

// Whether 16 bytes at a time or an element, as begin and end demand: all of a part of a tensor
// changes, and nothing else.
TEST_CASE("cuda_copies_parts_that_begin_and_end_anywhere") {
  constexpr int64_t n = 64;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor from = Tensor::empty({n}, dtype);
    from.copy_from(random_tensor({n}, 1));
    for (int64_t begin = 0; begin < 10; ++begin)
      for (int64_t end = n - 10; end <= n; ++end) {
        INFO(dtype << ", " << begin << " to " << end);
        const Tensor expected = Tensor::full({n}, 7, dtype), to = expected.to(Device::cuda);
        expected.rows(begin, end).copy_from(from.rows(begin, end));
        to.rows(begin, end).copy_from(from.to(Device::cuda).rows(begin, end));
        CHECK(same_bits(to.to(Device::cpu), expected));
      }
  }
}

TEST_CASE("cuda_binary_operations_under_broadcasting") {
  using kernels::Binary;
  struct Shapes {
    Shape a, b, y;
  };
  const Shapes all[] = {{{odd}, {odd}, {odd}},
                        {{5, 7, 33}, {33}, {5, 7, 33}},
                        {{5, 1, 3}, {7, 1}, {5, 7, 3}},
                        {{}, {3, 5}, {3, 5}},
                        {{2, 1, 3, 1, 2}, {1, 4, 1, 5, 2}, {2, 4, 3, 5, 2}},
                        // and 16 bytes at a time
                        {{1040}, {1040}, {1040}},
                        {{5, 7, 32}, {32}, {5, 7, 32}},
                        {{5, 1, 16}, {7, 1}, {5, 7, 16}},
                        {{2, 1, 3, 1, 8}, {1, 4, 1, 5, 8}, {2, 4, 3, 5, 8}}};
  for (const Shapes& shapes : all)
    for (const Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::div, Binary::pow}) {
      const Tensor a = uniform_tensor(shapes.a, 0.5, 2, 1), b = uniform_tensor(shapes.b, 0.5, 2, 2);
      const Tensor dy = random_tensor(shapes.y, 3);
      check_kernel("binary", {a, b}, {{shapes.y, false}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::binary_forward(in[0], in[1], op, out[0].tensor);
                   });
      check_kernel(
          "binary_backward", {dy, a, b}, {shapes.a, shapes.b},
          [&](const Inputs& in, const Outputs& out) {
            kernels::binary_backward(in[0], in[1], in[2], op, true, out[0]);
            kernels::binary_backward(in[0], in[1], in[2], op, false, out[1]);
          },
          3e-5);
    }
}

TEST_CASE("cuda_where_chooses_and_sends_gradients_back") {
  for (const int64_t C : {33, 32}) {
    const Tensor condition = random_indices(7 * C, 2, 1).view({7, C});
    const Tensor a = random_tensor({5, 7, C}, 2), b = random_tensor({C}, 3);
    check_kernel("where", {condition, a, b}, {{Shape{5, 7, C}, false}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::where_forward(in[0], in[1], in[2], out[0].tensor);
                 });
    check_kernel("where_backward", {condition, random_tensor({5, 7, C}, 4)},
                 {Shape{5, 7, C}, Shape{C}}, [](const Inputs& in, const Outputs& out) {
                   kernels::where_backward(in[1], in[0], true, out[0]);
                   kernels::where_backward(in[1], in[0], false, out[1]);
                 });
  }
}

TEST_CASE("cuda_draws_the_random_numbers_of_the_cpu") {
  const RandomKey key{.seed = 5, .purpose = Purpose::dropout, .step = 3, .operation = 2};
  for (const int64_t n : sizes)
    check_kernel(
        "dropout", {random_tensor({n}, 1)}, {Shape{n}},
        [&](const Inputs& in, const Outputs& out) { kernels::dropout(in[0], 0.3, key, out[0]); });
  check_kernel("fill_normal", {}, {{Shape{odd}, false}}, [&](const Inputs&, const Outputs& out) {
    kernels::fill_normal(out[0].tensor, 1, 2, key);
  });
  check_kernel("fill_uniform", {}, {{Shape{odd}, false}}, [&](const Inputs&, const Outputs& out) {
    kernels::fill_uniform(out[0].tensor, -1, 2, key);
  });
}

TEST_CASE("cuda_permutes") {
  const Tensor x = random_tensor({3, 5, 7, 2}, 1);
  const std::vector<std::vector<int>> orders = {{0, 2, 1, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}};
  for (const std::vector<int>& order : orders) {
    Shape shape;
    for (const int dim : order) shape.push_back(x.dim(dim));
    check_kernel("permute", {x}, {shape}, [&](const Inputs& in, const Outputs& out) {
      kernels::permute(in[0], order, out[0]);
    });
  }
}

TEST_CASE("cuda_reads_and_writes_slices") {
  struct Part {
    Shape whole;
    int dim;
    int64_t start, count;
  };
  const Part parts[] = {{{3, 5, 7, 2}, 0, 1, 1},
                        {{3, 5, 7, 2}, 2, 2, 4},
                        {{3, 5, 7, 2}, 3, 0, 2},
                        // and 16 bytes at a time
                        {{3, 5, 4, 2}, 1, 1, 3},
                        {{9, 40}, 1, 8, 24}};
  for (const Part& p : parts) {
    const Shape part = p.whole.with(p.dim, p.count);
    check_kernel("slice_read", {random_tensor(p.whole, 1)}, {part},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::slice_read(in[0], p.dim, p.start, out[0]);
                 });
    check_kernel("slice_backward", {random_tensor(part, 2)}, {p.whole},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::slice_backward(in[0], p.dim, p.start, out[0]);
                 });
    check_kernel("slice_write", {random_tensor(part, 2)}, {p.whole},
                 [&](const Inputs& in, const Outputs& out) {
                   if (!out[0].accumulate) out[0].tensor.fill(3);
                   kernels::slice_write(in[0], p.dim, p.start, out[0]);
                 });
  }
}

// More packs than there are threads, of which each goes on to other rows and columns.
TEST_CASE("cuda_goes_over_large_matrices") {
  for (const Shape& shape : {Shape{2110, 2004}, Shape{1100, 963}}) {
    INFO(shape);
    const Tensor x = random_indices(shape.numel(), 1 << 30, 1).view(shape);
    const int64_t columns = shape[1] - 4;
    const auto slice = [&](Device device) {
      const Tensor y = Tensor::full({shape[0], columns}, 7, DType::i32, device);
      kernels::slice_read(x.to(device), 1, 4, Destination{y, true});  // once, or it shows
      return y.to(Device::cpu);
    };
    CHECK(same_bits(slice(Device::cuda), slice(Device::cpu)));
  }
}
