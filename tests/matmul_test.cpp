// Matrix products, linear layers and SwiGLU against plain loops, and their gradients.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/cpu/gemm.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed, DType dtype = DType::f64) {
  Generator generator({seed, Purpose::evaluation});
  const Tensor x = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = 2 * generator.uniform() - 1;
    if (dtype == DType::f64)
      x.data<double>()[i] = value;
    else
      x.data<float>()[i] = static_cast<float>(value);
  }
  return x;
}

double at(const Tensor& x, int64_t i) {
  return x.dtype() == DType::f64 ? x.data<double>()[i] : x.data<float>()[i];
}

double largest_difference(const Tensor& x, const std::vector<double>& expected) {
  REQUIRE(x.numel() == static_cast<int64_t>(expected.size()));
  double worst = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isnan(at(x, i))) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(at(x, i) - expected[i]));
  }
  return worst;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

// op(a) op(b) by three loops, in double; matrices without leading dimensions serve all.
std::vector<double> product(const Tensor& a, bool ta, const Tensor& b, bool tb) {
  const int64_t m = a.dim(ta ? -1 : -2), k = a.dim(ta ? -2 : -1), n = b.dim(tb ? -2 : -1);
  const Tensor& stack = a.rank() > 2 ? a : b;
  const int64_t batch = stack.shape().range(0, stack.rank() - 2).numel();
  std::vector<double> c(batch * m * n);
  for (int64_t e = 0; e < batch; ++e)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          const int64_t in_a = (a.rank() > 2 ? e * m * k : 0) + (ta ? l * m + i : i * k + l);
          const int64_t in_b = (b.rank() > 2 ? e * k * n : 0) + (tb ? j * k + l : l * n + j);
          sum += at(a, in_a) * at(b, in_b);
        }
        c[(e * m + i) * n + j] = sum;
      }
  return c;
}

struct Flags {
  bool a, b;
};
constexpr Flags all_flags[] = {{false, false}, {false, true}, {true, false}, {true, true}};

Shape matrix_shape(int64_t rows, int64_t columns, bool transposed) {
  return transposed ? Shape{columns, rows} : Shape{rows, columns};
}
Shape stacked(int64_t batch, const Shape& matrix) { return {batch, matrix[0], matrix[1]}; }

class Threads {
 public:
  explicit Threads(int n) : before_(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

TEST_CASE("matmul_equals_three_loops") {
  const int64_t sizes[][3] = {{1, 1, 1},  {1, 33, 31}, {31, 1, 33},  {33, 31, 1},
                              {2, 65, 5}, {33, 31, 7}, {65, 129, 64}};
  for (const auto& [m, n, k] : sizes)
    for (const Flags t : all_flags)
      for (const DType dtype : {DType::f32, DType::f64}) {
        const Tensor a = random_tensor(matrix_shape(m, k, t.a), 1, dtype);
        const Tensor b = random_tensor(matrix_shape(k, n, t.b), 2, dtype);
        const Tensor c = matmul(a, b, t.a, t.b);
        CHECK(c.shape() == Shape{m, n});
        CHECK(largest_difference(c, product(a, t.a, b, t.b)) <
              k * (dtype == DType::f64 ? 1e-15 : 6e-7));
      }
}

TEST_CASE("matmul_serves_a_stack_with_a_single_matrix") {
  for (const Flags t : all_flags) {
    const Shape shape_a = matrix_shape(5, 7, t.a), shape_b = matrix_shape(7, 3, t.b);
    const Tensor a = random_tensor(shape_a, 1), b = random_tensor(shape_b, 2);
    const Tensor as = random_tensor(stacked(4, shape_a), 3),
                 bs = random_tensor(stacked(4, shape_b), 4);
    CHECK(matmul(as, bs, t.a, t.b).shape() == Shape{4, 5, 3});
    CHECK(largest_difference(matmul(as, bs, t.a, t.b), product(as, t.a, bs, t.b)) < 1e-14);
    CHECK(largest_difference(matmul(as, b, t.a, t.b), product(as, t.a, b, t.b)) < 1e-14);
    CHECK(largest_difference(matmul(a, bs, t.a, t.b), product(a, t.a, bs, t.b)) < 1e-14);
  }
}

TEST_CASE("tiled_products_equal_three_loops") {
  const int64_t sizes[][3] = {{700, 65, 129}, {65, 700, 129}, {1, 1300, 800}, {300, 200, 257}};
  for (const auto& [m, n, k] : sizes)
    for (const Flags t : all_flags) {
      REQUIRE(cpu::tiling_of(m, n, k).count() > 1);
      const Tensor a = random_tensor(matrix_shape(m, k, t.a), 1, DType::f32);
      const Tensor b = random_tensor(matrix_shape(k, n, t.b), 2, DType::f32);
      CHECK(largest_difference(matmul(a, b, t.a, t.b), product(a, t.a, b, t.b)) < k * 6e-7);
    }
}

TEST_CASE("tiles_cover_a_product_exactly_once") {
  const int64_t sizes[][3] = {{1, 1, 1},       {768, 384, 128}, {256, 50257, 768},
                              {577, 1537, 99}, {65, 128, 768},  {4096, 65, 384}};
  for (const auto& [m, n, k] : sizes) {
    const cpu::Tiling tiling = cpu::tiling_of(m, n, k);
    std::vector<int> rows(m), columns(n);
    int64_t area = 0;
    for (int64_t i = 0; i < tiling.count(); ++i) {
      const cpu::Tile tile = tiling[i];
      REQUIRE((0 <= tile.row && tile.row < tile.row_end && tile.row_end <= m));
      REQUIRE((0 <= tile.column && tile.column < tile.column_end && tile.column_end <= n));
      area += (tile.row_end - tile.row) * (tile.column_end - tile.column);
      for (int64_t r = tile.row; r < tile.row_end; ++r) ++rows[r];
      for (int64_t c = tile.column; c < tile.column_end; ++c) ++columns[c];
    }
    CHECK(area == m * n);
    CHECK(rows == std::vector<int>(m, static_cast<int>(tiling.across())));
    CHECK(columns == std::vector<int>(n, static_cast<int>(tiling.down())));
  }
}

TEST_CASE("products_have_the_same_bits_on_one_and_two_threads") {
  const int64_t sizes[][3] = {{768, 384, 128}, {384, 128, 768}, {65, 128, 768}, {1, 2304, 768}};
  for (const auto& [m, n, k] : sizes)
    for (const Flags t : all_flags) {
      REQUIRE(cpu::tiling_of(m, n, k).count() > 1);
      const Tensor a = random_tensor(matrix_shape(m, k, t.a), 1, DType::f32);
      const Tensor b = random_tensor(matrix_shape(k, n, t.b), 2, DType::f32);
      Tensor one, two;
      {
        const Threads threads(1);
        one = matmul(a, b, t.a, t.b);
      }
      {
        const Threads threads(2);
        two = matmul(a, b, t.a, t.b);
      }
      CHECK(same_bits(one, two));
    }
}

TEST_CASE("linear_has_the_same_bits_on_one_and_two_threads") {
  std::vector<Tensor> results[2];
  for (int threads : {1, 2}) {
    const Threads scope(threads);
    const Tensor x = requires_gradient(random_tensor({768, 128}, 1, DType::f32));
    const Tensor weight = requires_gradient(random_tensor({512, 128}, 2, DType::f32));
    const Tensor bias = requires_gradient(random_tensor({512}, 3, DType::f32));
    Tape tape;
    const Tensor y = linear(x, weight, bias, Activation::gelu);
    const Tensor dy = random_tensor({768, 512}, 4, DType::f32);
    tape.backward_from({&y, 1}, {&dy, 1});
    results[threads - 1] = {y, gradient(x), gradient(weight), gradient(bias)};
  }
  for (size_t i = 0; i < 4; ++i) CHECK(same_bits(results[0][i], results[1][i]));
}

TEST_CASE("a_product_scales_and_adds_to_what_is_there_or_overwrites_it") {
  const int64_t sizes[][3] = {{31, 33, 7}, {1, 33, 7}, {33, 1, 7}, {1, 1, 7}, {300, 200, 257}};
  for (const auto& [m, n, k] : sizes)
    for (const Flags t : all_flags) {
      const Tensor a = random_tensor(matrix_shape(m, k, t.a), 1);
      const Tensor b = random_tensor(matrix_shape(k, n, t.b), 2);
      const Tensor c = random_tensor({m, n}, 3);
      std::vector<double> expected = product(a, t.a, b, t.b);
      for (int64_t i = 0; i < m * n; ++i) expected[i] = at(c, i) + 0.5 * expected[i];
      kernels::matmul(a, t.a, b, t.b, 0.5, Destination{c, true});
      CHECK(largest_difference(c, expected) < 1e-13);
      c.fill(std::numeric_limits<double>::quiet_NaN());
      kernels::matmul(a, t.a, b, t.b, 1, Destination{c, false});
      CHECK(largest_difference(c, product(a, t.a, b, t.b)) < 1e-13);
    }
}

TEST_CASE("an_inner_size_of_zero_gives_zeros_and_empty_products_are_empty") {
  const Tensor nothing = matmul(Tensor::zeros({3, 0}), Tensor::zeros({0, 2}));
  CHECK(nothing.to_vector<float>() == std::vector<float>(6, 0.0f));
  CHECK(matmul(Tensor::zeros({0, 4}), Tensor::zeros({4, 2})).shape() == Shape{0, 2});
  CHECK(matmul(Tensor::zeros({0, 5, 4}), Tensor::zeros({4, 2})).shape() == Shape{0, 5, 2});
  const Tensor weight = requires_gradient(Tensor::full({2, 4}, 1)), x = Tensor::zeros({0, 4});
  const Tensor bias = requires_gradient(Tensor::full({2}, 1));
  Tape tape;
  const Tensor y = linear(x, weight, bias, Activation::relu), dy = Tensor::zeros({0, 2});
  CHECK(y.shape() == Shape{0, 2});
  tape.backward_from({&y, 1}, {&dy, 1});
  CHECK(gradient(weight).to_vector<float>() == std::vector<float>(8, 0.0f));
  CHECK(gradient(bias).to_vector<float>() == std::vector<float>(2, 0.0f));
}

TEST_CASE("a_product_called_whole_on_two_threads_is_the_same_product") {
  const Tensor a = random_tensor({300, 200}, 1, DType::f32),
               b = random_tensor({200, 150}, 2, DType::f32);
  const Tensor c = Tensor::empty({300, 150});
  const int before = num_threads();
  cpu::gemm_whole({300, 150, 200, false, false, 200, 150, 150}, a.data<float>(), b.data<float>(),
                  c.data<float>(), 2);
  CHECK(largest_difference(c, product(a, false, b, false)) < 200 * 6e-7);
  CHECK(num_threads() == before);
}

TEST_CASE("matmul_gradients") {
  for (const Flags t : all_flags) {
    const auto f = [t](const std::vector<Tensor>& x) { return matmul(x[0], x[1], t.a, t.b); };
    const Shape shape_a = matrix_shape(3, 31, t.a), shape_b = matrix_shape(31, 5, t.b);
    const auto single_a = random_tensor(shape_a, 1), single_b = random_tensor(shape_b, 2);
    const Shape small_a = matrix_shape(3, 4, t.a), small_b = matrix_shape(4, 5, t.b);
    const auto a = random_tensor(small_a, 1), b = random_tensor(small_b, 2);
    const auto as = random_tensor(stacked(3, small_a), 3),
               bs = random_tensor(stacked(3, small_b), 4);
    for (const std::vector<Tensor>& inputs :
         {std::vector{single_a, single_b}, {as, bs}, {as, b}, {a, bs}}) {
      const GradcheckResult result = gradcheck(f, inputs);
      INFO(result.message);
      CHECK(result);
    }
    const GradcheckResult aliased =
        gradcheck([t](const std::vector<Tensor>& x) { return matmul(x[0], x[0], t.a, t.b); },
                  {random_tensor({7, 7}, 5)});
    INFO(aliased.message);
    CHECK(aliased);
  }
}

TEST_CASE("linear_equals_product_bias_and_activation") {
  const Tensor x = random_tensor({2, 3, 31}, 1), weight = random_tensor({33, 31}, 2);
  const Tensor bias = random_tensor({33}, 3);
  const Tensor z = matmul(x, weight, false, true) + bias;
  const std::pair<Activation, Tensor> cases[] = {{Activation::none, z},
                                                 {Activation::relu, relu(z)},
                                                 {Activation::gelu, gelu(z)},
                                                 {Activation::gelu_tanh, gelu_tanh(z)},
                                                 {Activation::silu, silu(z)}};
  for (const auto& [activation, expected] : cases) {
    const Tensor y = linear(x, weight, bias, activation);
    CHECK(y.shape() == Shape{2, 3, 33});
    CHECK(largest_difference(y, expected.to_vector<double>()) < 1e-14);
  }
  CHECK(largest_difference(linear(x, weight), product(x, false, weight, true)) < 1e-13);
}

TEST_CASE("linear_gradients") {
  const Tensor x = random_tensor({3, 5, 7}, 1), weight = random_tensor({31, 7}, 2);
  const Tensor bias = random_tensor({31}, 3);
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu,
                                      Activation::gelu_tanh, Activation::silu}) {
    const GradcheckResult with_bias = gradcheck(
        [=](const std::vector<Tensor>& in) { return linear(in[0], in[1], in[2], activation); },
        {x, weight, bias});
    INFO(with_bias.message);
    CHECK(with_bias);
    const GradcheckResult without = gradcheck(
        [=](const std::vector<Tensor>& in) { return linear(in[0], in[1], {}, activation); },
        {x, weight});
    INFO(without.message);
    CHECK(without);
  }
  const GradcheckResult aliased =
      gradcheck([](const std::vector<Tensor>& in) { return linear(in[0], in[0]); },
                {random_tensor({5, 7}, 4)});
  INFO(aliased.message);
  CHECK(aliased);
  const GradcheckResult all_alike = gradcheck(
      [](const std::vector<Tensor>& in) {
        return linear(in[0], reshape(in[0], {1, 1}), in[0], Activation::gelu);
      },
      {random_tensor({1}, 5)});
  INFO(all_alike.message);
  CHECK(all_alike);
}

TEST_CASE("bias_gradient_over_many_rows_equals_the_plain_sum") {
  const Tensor dy = random_tensor({1057, 33}, 1, DType::f32),
               z = random_tensor({1057, 33}, 2, DType::f32);
  const Tensor dbias = Tensor::full({33}, 1);
  std::vector<double> expected(33, 1.0);
  for (int64_t n = 0; n < 1057; ++n)
    for (int64_t o = 0; o < 33; ++o)
      if (at(z, n * 33 + o) > 0) expected[o] += at(dy, n * 33 + o);
  kernels::bias_activation_backward(dy, z, Activation::relu, dy.empty_like(),
                                    Destination{dbias, true});
  CHECK(largest_difference(dbias, expected) < 1e-4);
}

TEST_CASE("swiglu_is_silu_of_one_half_times_the_other") {
  const Tensor x = random_tensor({3, 62}, 1);
  const Tensor expected = silu(slice(x, 1, 0, 31)) * slice(x, 1, 31, 62);
  CHECK(largest_difference(swiglu(x), expected.to_vector<double>()) < 1e-15);
  const GradcheckResult result =
      gradcheck([](const std::vector<Tensor>& in) { return swiglu(in[0]); }, {x});
  INFO(result.message);
  CHECK(result);
}

TEST_CASE("products_say_what_does_not_fit") {
  const Tensor a = Tensor::zeros({4, 8}), b = Tensor::zeros({6, 3});
  CHECK_THROWS_WITH(matmul(a, b), "matmul: inner sizes differ: a [4, 8], b [6, 3]");
  CHECK_THROWS_WITH(matmul(a, b, true),
                    "matmul: inner sizes differ: a [4, 8] transposed, b [6, 3]");
  CHECK_THROWS_WITH(matmul(Tensor::zeros({2, 4, 8}), Tensor::zeros({3, 8, 5})),
                    ContainsSubstring("matmul: leading sizes differ: a [2, 4, 8], b [3, 8, 5]"));
  CHECK_THROWS_WITH(matmul(Tensor::zeros({8}), b), ContainsSubstring("matmul: needs matrices"));
  CHECK_THROWS_WITH(matmul(a, Tensor::zeros({8, 3}, DType::f64)),
                    ContainsSubstring("matmul: dtypes differ: a is f32, b is f64; convert one"));
  CHECK_THROWS_WITH(matmul(Tensor::zeros({2, 2}, DType::i32), Tensor::zeros({2, 2}, DType::i32)),
                    ContainsSubstring("matmul: needs floating-point numbers, got i32"));
  CHECK_THROWS_WITH(linear(a, b), "linear: inner sizes differ: x [4, 8], weight [6, 3]");
  CHECK_THROWS_WITH(linear(a, Tensor::zeros({3, 8}, DType::f64)),
                    ContainsSubstring("linear: dtypes differ: x is f32, weight is f64"));
  CHECK_THROWS_WITH(linear(a, Tensor::zeros({3, 8}), Tensor::zeros({3}, DType::f64)),
                    ContainsSubstring("linear: dtypes differ: x is f32, bias is f64"));
  CHECK_THROWS_WITH(linear(Tensor::zeros({4, 8}, DType::i32), Tensor::zeros({3, 8}, DType::i32)),
                    ContainsSubstring("linear: needs floating-point numbers, got i32"));
  CHECK_THROWS_WITH(swiglu(Tensor::zeros({2, 4}, DType::i32)),
                    ContainsSubstring("swiglu: needs floating-point numbers, got i32"));
  CHECK_THROWS_WITH(linear(a, Tensor::zeros({8})),
                    ContainsSubstring("weight must be [outputs, inputs]"));
  CHECK_THROWS_WITH(linear(a, Tensor::zeros({3, 8}), Tensor::zeros({8})),
                    "linear: bias must be [3] beside weight [3, 8], got [8]");
  CHECK_THROWS_WITH(swiglu(Tensor::zeros({2, 3})), ContainsSubstring("must be even, got [2, 3]"));
}

#ifdef __linux__
// OpenBLAS's OpenMP build would start threads of its own for a product on a thread new to it.
TEST_CASE("a_product_on_one_thread_starts_no_other") {
  const auto threads_of_this_process = [] {
    const auto entries = std::filesystem::directory_iterator("/proc/self/task");
    return std::distance(begin(entries), end(entries));
  };
  const int before = num_threads();
  set_num_threads(1);
  ptrdiff_t started = -1;
  std::thread([&] {
    const Tensor a = random_tensor({300, 300}, 1, DType::f32);
    const auto count = threads_of_this_process();
    matmul(a, a);
    matmul(a, slice(a, 1, 0, 1));
    started = threads_of_this_process() - count;
  }).join();
  set_num_threads(before);
  CHECK(started == 0);
}
#endif
