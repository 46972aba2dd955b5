// Element-wise operations: values, broadcasting, gradients, mistakes.
#include <cmath>
#include <functional>
#include <limits>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/threads.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

using Inputs = std::vector<Tensor>;
using BinaryOperation = Tensor (*)(const Tensor&, const Tensor&);
using UnaryOperation = Tensor (*)(const Tensor&);

constexpr float infinity = std::numeric_limits<float>::infinity();

// Away from 0, where relu has its corner and logarithms and divisions have none.
Tensor positive(const Shape& shape, uint64_t seed) { return uniform_tensor(shape, 0.5, 2, seed); }

// Element `index` of x repeated to `shape`, by NumPy's rule and nothing else.
double broadcast_at(const Tensor& x, const Shape& shape, int64_t index) {
  int64_t offset = 0, stride = 1;
  for (int back = 1; back <= shape.rank(); ++back) {
    const int64_t at = index % shape[-back];
    index /= shape[-back];
    if (back > x.rank()) continue;
    if (x.dim(-back) != 1) offset += at * stride;
    stride *= x.dim(-back);
  }
  return x.data<double>()[offset];
}

struct ShapePair {
  Shape a, b;
};
const ShapePair shape_pairs[] = {{{33}, {33}},
                                 {{1}, {31}},
                                 {{31}, {}},
                                 {{3, 31}, {31}},
                                 {{31, 3}, {31, 1}},
                                 {{1, 31}, {33, 1}},
                                 {{2, 3, 5}, {3, 5}},
                                 {{2, 3, 5}, {1, 3, 1}},
                                 {{3, 5}, {2, 1, 5}},
                                 {{2, 1, 3, 1}, {5, 1, 7}},
                                 {{2, 1, 3, 1, 2, 1}, {1, 3, 1, 2, 1, 2}},
                                 {{1, 1}, {1}}};

}  // namespace

TEST_CASE("binary_operations_broadcast_as_numpy_does") {
  struct Case {
    BinaryOperation f;
    double (*reference)(double, double);
  };
  const Case cases[] = {{add, [](double a, double b) { return a + b; }},
                        {sub, [](double a, double b) { return a - b; }},
                        {mul, [](double a, double b) { return a * b; }},
                        {div, [](double a, double b) { return a / b; }},
                        {pow, [](double a, double b) { return std::pow(a, b); }}};
  for (const auto& [shape_a, shape_b] : shape_pairs) {
    const Tensor a = positive(shape_a, 1), b = positive(shape_b, 2);
    for (const auto& [f, reference] : cases) {
      const Tensor y = f(a, b);
      REQUIRE(y.shape() == broadcast_shapes("test", shape_a, shape_b));
      for (int64_t i = 0; i < y.numel(); ++i)
        REQUIRE(y.data<double>()[i] ==
                Approx(reference(broadcast_at(a, y.shape(), i), broadcast_at(b, y.shape(), i))));
    }
  }
}

TEST_CASE("binary_gradients_with_broadcasting") {
  for (const BinaryOperation f : {BinaryOperation(add), BinaryOperation(sub), BinaryOperation(mul),
                                  BinaryOperation(div), BinaryOperation(pow)})
    for (const auto& [a, b] : shape_pairs) {
      const auto result = gradcheck([f](const Inputs& in) { return f(in[0], in[1]); },
                                    {positive(a, 1), positive(b, 2)});
      INFO(a << " and " << b << ": " << result.message);
      CHECK(result);
      CHECK(gradcheck([f](const Inputs& in) { return f(in[1], in[0]); },
                      {positive(a, 3), positive(b, 4)}));
    }
}

TEST_CASE("binary_gradients_of_aliased_inputs") {
  for (const BinaryOperation f : {BinaryOperation(add), BinaryOperation(sub), BinaryOperation(mul),
                                  BinaryOperation(div), BinaryOperation(pow)})
    CHECK(
        gradcheck([f](const Inputs& in) { return f(in[0], in[0]) * in[0]; }, {positive({31}, 5)}));
}

TEST_CASE("large_broadcast_gradients_agree_with_small_ones") {
  // Long enough for several chunks and threads; the reference sums in order.
  constexpr int64_t B = 3, T = 401, C = 67;
  const Tensor x = random_tensor({B, T, C}, 1), dy = random_tensor({B, T, C}, 2);
  for (const Shape& shape : {Shape{C}, Shape{T, C}, Shape{B, T, 1}, Shape{1, T, 1}, Shape{B, 1, C},
                             Shape{}, Shape{B, T, C}}) {
    const Tensor b = requires_gradient(positive(shape, 3));
    Tape tape;
    tape.backward(sum(mul(div(x, b), dy)));
    std::vector<double> expected(b.numel(), 0.0);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t c = i % C, t = i / C % T, n = i / C / T;
      int64_t k = 0;
      for (int d = 0; d < shape.rank(); ++d) {
        const int from_end = shape.rank() - d;
        const int64_t at = from_end == 1 ? c : from_end == 2 ? t : n;
        k = k * shape[d] + (shape[d] == 1 ? 0 : at);
      }
      const double value = b.data<double>()[k];
      expected[k] -= x.data<double>()[i] / (value * value) * dy.data<double>()[i];
    }
    const auto got = gradient(b).to_vector<double>();
    for (size_t k = 0; k < got.size(); ++k) REQUIRE(got[k] == Approx(expected[k]).epsilon(1e-9));
  }
}

TEST_CASE("unary_values_agree_with_libm") {
  struct Case {
    UnaryOperation f;
    double (*reference)(double);
  };
  const Case cases[] = {{exp, [](double x) { return std::exp(x); }},
                        {log, [](double x) { return std::log(x); }},
                        {sqrt, [](double x) { return std::sqrt(x); }},
                        {tanh, [](double x) { return std::tanh(x); }},
                        {sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
                        {relu, [](double x) { return x > 0 ? x : 0; }},
                        {gelu, [](double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2))); }},
                        {gelu_tanh,
                         [](double x) {
                           return 0.5 * x *
                                  (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
                         }},
                        {silu, [](double x) { return x / (1 + std::exp(-x)); }},
                        {neg, [](double x) { return -x; }}};
  for (const auto& [f, reference] : cases) {
    const bool positive_only = f == UnaryOperation(log) || f == UnaryOperation(sqrt);
    const double low = positive_only ? 0.01 : -6;
    const Tensor x = uniform_tensor({257}, low, 6, 1), x32 = cast(x, DType::f32);
    const Tensor y = f(x), y32 = f(x32);
    for (int64_t i = 0; i < x.numel(); ++i) {
      REQUIRE(y.data<double>()[i] == Approx(reference(x.data<double>()[i])).margin(1e-14));
      REQUIRE(y32.data<float>()[i] ==
              Approx(reference(x32.data<float>()[i])).epsilon(1e-6).margin(1e-6));
    }
  }
}

TEST_CASE("unary_gradients") {
  for (const UnaryOperation f :
       {UnaryOperation(exp), UnaryOperation(log), UnaryOperation(sqrt), UnaryOperation(tanh),
        UnaryOperation(sigmoid), UnaryOperation(relu), UnaryOperation(gelu),
        UnaryOperation(gelu_tanh), UnaryOperation(silu), UnaryOperation(neg)})
    for (const int64_t n : {1, 31, 33}) {
      const bool positive_only = f == UnaryOperation(log) || f == UnaryOperation(sqrt);
      const Tensor x = positive({2, n}, n);
      const auto result =
          gradcheck([&](const Inputs& in) { return f(positive_only ? in[0] : in[0] - 1.2); }, {x});
      INFO(result.message);
      CHECK(result);
    }
}

TEST_CASE("power_values_and_gradients_for_every_kind_of_exponent") {
  for (const double e : {0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 2.7, -0.3}) {
    const Tensor x = positive({33}, 1), y = pow(x, e);
    for (int64_t i = 0; i < 33; ++i)
      REQUIRE(y.data<double>()[i] == Approx(std::pow(x.data<double>()[i], e)));
    CHECK(gradcheck([e](const Inputs& in) { return pow(in[0], e); }, {x}));
  }
}

TEST_CASE("gradients_of_powers_at_zero_are_finite_where_the_limit_is") {
  const Tensor x = requires_gradient(Tensor::zeros({2})),
               e = requires_gradient(Tensor::from<float>({2, 0}));
  Tape tape;
  tape.backward(sum(pow(x, e) + pow(x, 0) + pow(x, 1) + pow(x, 2)));
  CHECK(gradient(x).to_vector<float>() == std::vector<float>{1, 1});
  CHECK(gradient(e).to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("gradients_of_a_division_by_a_tiny_number_do_not_overflow") {
  const Tensor a = requires_gradient(Tensor::from<float>({1e-25f, 2e-25f}));
  const Tensor b = requires_gradient(Tensor::from<float>({1e-25f, -4e-25f}));
  Tape tape;
  tape.backward(sum(a / b));
  CHECK(gradient(a).data<float>()[0] == Approx(1e25));
  CHECK(gradient(b).data<float>()[0] == Approx(-1e25));
  CHECK(gradient(b).data<float>()[1] == Approx(-1.25e24));
}

TEST_CASE("a_nan_is_never_hidden") {
  const Tensor x = Tensor::full({40}, std::nan(""));
  for (const UnaryOperation f :
       {UnaryOperation(exp), UnaryOperation(log), UnaryOperation(sqrt), UnaryOperation(tanh),
        UnaryOperation(sigmoid), UnaryOperation(relu), UnaryOperation(gelu),
        UnaryOperation(gelu_tanh), UnaryOperation(silu)}) {
    const Tensor y = f(x);
    for (const float value : y.to_vector<float>()) REQUIRE(std::isnan(value));
  }
}

TEST_CASE("operators_on_tensors_read_as_formulas") {
  const Tensor x = positive({5}, 1), y = positive({5}, 2);
  const Tensor z = 2.0 * x - y / x + (1.0 - x) * 3.0 - (-y) / 2.0 + 4.0 / x;
  for (int64_t i = 0; i < 5; ++i) {
    const double a = x.data<double>()[i], b = y.data<double>()[i];
    CHECK(z.data<double>()[i] == Approx(2 * a - b / a + (1 - a) * 3 + b / 2 + 4 / a));
  }
  CHECK(gradcheck(
      [](const Inputs& in) {
        return 2.0 * in[0] - in[1] / in[0] + (1.0 - in[0]) * 3.0 + 4.0 / in[0] + (in[1] + 1.0);
      },
      {x, y}));
}

TEST_CASE("where_chooses_and_sends_gradients_only_to_the_chosen") {
  const Tensor condition = Tensor::from<int32_t>({1, 0, 2}, {3});
  const Tensor y = where(condition, Tensor::full({2, 1}, 5), Tensor::from<float>({7, 8, 9}));
  CHECK(y.shape() == Shape{2, 3});
  CHECK(y.to_vector<float>() == std::vector<float>{5, 8, 5, 5, 8, 5});
  for (const auto& [a, b] : shape_pairs) {
    const Shape shape = broadcast_shapes("test", a, b);
    const Tensor mask = Tensor::empty(shape, DType::i32);
    for (int64_t i = 0; i < mask.numel(); ++i) mask.data<int32_t>()[i] = i % 3 == 0;
    CHECK(gradcheck([&](const Inputs& in) { return where(mask, in[0], in[1]); },
                    {random_tensor(a, 1), random_tensor(b, 2)}));
  }
  // A condition larger than both.
  const Tensor large = Tensor::from<int32_t>({1, 0, 0, 1}, {2, 2});
  CHECK(gradcheck([&](const Inputs& in) { return where(large, in[0], in[1]); },
                  {random_tensor({2}, 1), random_tensor({}, 2)}));
  CHECK(gradcheck([&](const Inputs& in) { return where(large, in[0], in[0]) * in[0]; },
                  {random_tensor({2}, 1)}));
}

TEST_CASE("masked_fill_hides_infinities_and_stops_their_gradient") {
  const Tensor mask = Tensor::from<int32_t>({0, 1, 0}, {3});
  const Tensor x = requires_gradient(Tensor::full({2, 3}, 4));
  Tape tape;
  const Tensor y = masked_fill(x, mask, -infinity);
  CHECK(y.to_vector<float>() == std::vector<float>{4, -infinity, 4, 4, -infinity, 4});
  tape.backward(sum(exp(y)));
  CHECK(gradient(x).to_vector<float>()[1] == 0);
  CHECK(gradient(x).to_vector<float>()[0] == Approx(std::exp(4.0)));
}

TEST_CASE("cast_converts_and_its_gradient_converts_back") {
  const Tensor x = requires_gradient(Tensor::from<float>({1.5f, -2}));
  Tape tape;
  const Tensor y = cast(x, DType::f64);
  CHECK(y.to_vector<double>() == std::vector<double>{1.5, -2});
  tape.backward(sum(y * y));
  CHECK(gradient(x).dtype() == DType::f32);
  CHECK(gradient(x).to_vector<float>() == std::vector<float>{3, -4});
  CHECK(cast(Tensor::from<int32_t>({3}), DType::f32).item() == 3);
  CHECK(cast(x, DType::f32).is(x));
}

TEST_CASE("adding_passes_one_gradient_buffer_through") {
  const Tensor a = requires_gradient(Tensor::full({1 << 16}, 1));
  const size_t before = memory_stats().live_bytes;
  {
    Tape tape;
    Tensor y = a;
    for (int i = 0; i < 20; ++i) y = y + 1.0 * y;
    const Tensor loss = mean(y);
    y = Tensor{};
    reset_peak_memory();
    const size_t recorded = memory_stats().live_bytes;
    tape.backward(loss);
    // The gradients of 20 sums and products need a handful of buffers, not one each.
    CHECK(memory_stats().peak_bytes - recorded <= 4 * a.bytes());
    CHECK(gradient(a).to_vector<float>()[7] == Approx(16));  // 2^20 / 2^16
  }
  CHECK(memory_stats().live_bytes == before + a.bytes());  // the leaf's gradient
}

TEST_CASE("empty_tensors_pass_through") {
  const Tensor x = requires_gradient(Tensor::zeros({0, 3}));
  const Tensor b = requires_gradient(Tensor::zeros({3}));
  Tape tape;
  const Tensor y = gelu(x * b + b);
  CHECK(y.shape() == Shape{0, 3});
  const Tensor total = sum(y);
  CHECK(total.item() == 0);
  tape.backward(total);
  CHECK(gradient(b).to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(gradient(x).numel() == 0);
}

TEST_CASE("element_wise_results_do_not_depend_on_threads") {
  const Tensor x = random_tensor({301, 257}, 1, DType::f32),
               b = random_tensor({257}, 2, DType::f32);
  const auto run = [&](int threads) {
    set_num_threads(threads);
    const Tensor leaf = requires_gradient(b.clone());
    Tape tape;
    const Tensor y = gelu(x * leaf);
    tape.backward(sum(y));
    return std::pair(y.to_vector<float>(), gradient(leaf).to_vector<float>());
  };
  const int threads = num_threads();
  const auto one = run(1), two = run(2), three = run(3);
  set_num_threads(threads);
  CHECK(one == two);
  CHECK(one == three);
}

TEST_CASE("element_wise_mistakes_are_explained") {
  const Tensor x = Tensor::zeros({4, 8}), integers = Tensor::zeros({4}, DType::i32);
  CHECK_THROWS_WITH(x + Tensor::zeros({6}),
                    ContainsSubstring("add: shapes do not broadcast: [4, 8] and [6]"));
  CHECK_THROWS_WITH(mul(x, Tensor::zeros({8}, DType::f64)),
                    ContainsSubstring("mul: dtypes differ: a is f32, b is f64; convert one with "
                                      "cast(x, DType::f32)"));
  CHECK_THROWS_WITH(exp(integers), ContainsSubstring("exp: needs floating-point numbers, got i32; "
                                                     "convert with cast(x, DType::f32)"));
  CHECK_THROWS_WITH(pow(integers, 2), ContainsSubstring("pow: needs floating-point numbers"));
  CHECK_THROWS_WITH(where(x, x, x), ContainsSubstring("where: the condition must be i32, got f32"));
  CHECK_THROWS_WITH(masked_fill(x, x, 0), ContainsSubstring("the mask must be i32"));
  CHECK_THROWS_WITH(masked_fill(x, Tensor::zeros({2, 4, 8}, DType::i32), 0),
                    ContainsSubstring("mask of shape [2, 4, 8] is larger than x [4, 8]"));
  CHECK_THROWS_WITH(cast(requires_gradient(Tensor::zeros({1})), DType::i32),
                    ContainsSubstring("cast: integers carry no gradient"));
}
