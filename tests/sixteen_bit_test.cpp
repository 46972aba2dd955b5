// Operations in bf16 and f16, against the same in f32: values are rounded once, sums and statistics
// are not.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "layers/norm.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/norms.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

using Tensors = std::vector<Tensor>;

// Half a unit in the last place, relative to the number.
double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

struct Case {
  const char* name;
  std::vector<Shape> shapes;
  std::function<Tensor(const Tensors&)> f;
  double gradient_roundings = 4;  // of its largest element
  // How far the result may be from f32's, in roundings of its largest element. 1: it is what f32
  // gives, rounded once.
  double roundings = 1;
};

std::vector<Case> element_wise() {
  const Shape x{7, 33}, row{33};
  const auto positive = [](const Tensor& x) { return 0.5 + x * x; };
  return {
      {"add", {x, x}, [](auto& t) { return t[0] + t[1]; }},
      {"add row", {x, row}, [](auto& t) { return t[0] + t[1]; }},
      {"add column", {{700, 3}, {700, 1}}, [](auto& t) { return t[0] + t[1]; }},
      {"sub", {row, x}, [](auto& t) { return t[0] - t[1]; }},
      {"mul", {{700, 5}, {5}}, [](auto& t) { return t[0] * t[1]; }},
      {"mul by a number", {{700, 5}, {1}}, [](auto& t) { return t[0] * t[1]; }},
      {"div", {x, x}, [=](auto& t) { return t[0] / positive(t[1]); }, 8, 3},
      {"pow", {x, row}, [=](auto& t) { return pow(positive(t[0]), t[1]); }, 16, 8},
      {"pow by a number", {x}, [](auto& t) { return pow(t[0], 3); }},
      {"affine", {x}, [](auto& t) { return affine(t[0], -3, 0.25); }},
      {"exp", {x}, [](auto& t) { return exp(t[0]); }},
      {"log", {x}, [=](auto& t) { return log(positive(t[0])); }, 8, 3},
      {"sqrt", {x}, [=](auto& t) { return sqrt(positive(t[0])); }, 8, 2},
      {"tanh", {x}, [](auto& t) { return tanh(t[0]); }},
      {"sigmoid", {x}, [](auto& t) { return sigmoid(t[0]); }},
      {"relu", {x}, [](auto& t) { return relu(t[0]); }},
      {"gelu", {x}, [](auto& t) { return gelu(t[0]); }},
      {"gelu_tanh", {x}, [](auto& t) { return gelu_tanh(t[0]); }},
      {"silu", {x}, [](auto& t) { return silu(t[0]); }},
      {"where",
       {x, row},
       [](auto& t) {
         return where(Tensor::from<int32_t>({1, 0, 1, 0, 0, 1, 1}, {7, 1}), t[0], t[1]);
       }},
      {"masked_fill",
       {x},
       [](auto& t) {
         return masked_fill(t[0], Tensor::from<int32_t>({1, 0, 1, 0, 0, 1, 1}, {7, 1}), -2);
       }},
      {"dropout",
       {x},
       [](auto& t) {
         const RandomScope random({1, Purpose::dropout, 0, 0});
         return dropout(t[0], 0.25);
       }},
      {"cast", {x}, [](auto& t) { return cast(cast(t[0], DType::f64), t[0].dtype()); }},
  };
}

std::vector<Case> sums_and_shapes() {
  const Shape x{7, 33};
  const Tensor choice = Tensor::from<int32_t>({3, 0, 3, 8, 3, 3, 1});
  return {
      {"sum", {{3000}}, [](auto& t) { return sum(t[0]); }},
      {"sum of columns", {{700, 5}}, [](auto& t) { return sum(t[0], 0); }},
      {"sum of rows", {{5, 700}}, [](auto& t) { return sum(t[0], 1, true); }},
      {"mean", {x}, [](auto& t) { return mean(t[0], -1); }},
      {"max", {x}, [](auto& t) { return max(t[0], 1); }},
      {"permute",
       {{3, 4, 5}},
       [](auto& t) {
         return permute(t[0], {2, 0, 1});
       }},
      {"slice", {x}, [](auto& t) { return slice(t[0], 1, 3, 20); }},
      {"slice of rows", {x}, [](auto& t) { return slice(t[0], 0, 2, 5); }},
      {"concat",
       {x, x},
       [](auto& t) {
         return concat({t[0], t[1], t[0]}, 1);
       }},
      {"stack",
       {x, x},
       [](auto& t) {
         return stack({t[0], t[1]}, 1);
       }},
      {"reshape",
       {x},
       [](auto& t) {
         return reshape(t[0], {33, 7});
       }},
      {"embedding", {{9, 33}}, [=](auto& t) { return embedding(t[0], choice); }},
      {"softmax", {x}, [](auto& t) { return softmax(t[0], -1); }},
      {"softmax of columns", {x}, [](auto& t) { return softmax(t[0], 0); }},
      {"log_softmax", {x}, [](auto& t) { return log_softmax(t[0], -1); }},
      {"rotary", {{2, 5, 24}}, [](auto& t) { return rotary(t[0], 2, 8, 3); }},
  };
}

std::vector<Case> products_and_norms() {
  const Shape x{2, 9, 24}, channels{24};
  const auto activated = [](Activation f) {
    return [f](const Tensors& t) { return linear(t[0], t[1], t[2], f); };
  };
  const auto attend = [](bool causal) {
    return [causal](const Tensors& t) {
      return attention(t[0], {.heads = 4, .kv_heads = 2, .causal = causal, .alibi = causal});
    };
  };
  return {
      {"matmul", {{17, 900}, {900, 19}}, [](auto& t) { return matmul(t[0], t[1]); }},
      {"matmul transposed",
       {{3, 5, 17}, {3, 19, 5}},
       [](auto& t) { return matmul(t[0], t[1], true, true); }},
      {"linear", {{700, 7}, {5, 7}, {5}}, activated(Activation::none)},
      {"linear of many inputs", {{9, 900}, {5, 900}, {5}}, activated(Activation::none)},
      {"linear gelu", {{700, 7}, {5, 7}, {5}}, activated(Activation::gelu), 8, 3},
      {"linear relu", {{40, 7}, {5, 7}, {5}}, activated(Activation::relu), 8, 1},
      {"linear silu", {{40, 7}, {5, 7}, {5}}, activated(Activation::silu), 8, 3},
      {"swiglu", {x}, [](auto& t) { return swiglu(t[0]); }},
      {"layer_norm",
       {{700, 24}, channels, channels},
       [](auto& t) { return layer_norm(t[0], t[1], t[2]); }},
      {"rms_norm", {{700, 24}, channels}, [](auto& t) { return rms_norm(t[0], t[1]); }},
      {"add_layer_norm",
       {x, x, channels, channels},
       [](auto& t) {
         const SumAndNorm both = add_layer_norm(t[0], t[1], 0.75, t[2], t[3]);
         return both.sum + both.norm;
       },
       8,
       4},
      {"add_rms_norm",
       {x, x, channels},
       [](auto& t) {
         const SumAndNorm both = add_rms_norm(t[0], t[1], 0.75, t[2]);
         return both.sum + both.norm;
       },
       8,
       4},
      {"scale_norm", {x, {1}}, [](auto& t) { return scale_norm(t[0], t[1]); }},
      {"dyt", {x, {1}, channels, channels}, [](auto& t) { return dyt(t[0], t[1], t[2], t[3]); }},
      {"batch_norm",
       {x, channels, channels},
       [](auto& t) {
         const Moments moments = batch_moments(t[0], {}, true);
         return batch_norm(t[0], {}, moments, false, t[1], t[2], 1e-5);
       }},
      {"attention", {{2, 37, 64}}, attend(false)},
      {"causal attention", {{2, 37, 64}}, attend(true)},
      {"cross-attention",
       {{2, 5, 32}, {2, 9, 32}, {2, 9, 32}},
       [](auto& t) { return attention(t[0], t[1], t[2], {.heads = 4}); }},
      {"cross_entropy",
       {{7, 33}},
       [](auto& t) {
         return cross_entropy(t[0], Tensor::from<int32_t>({1, 2, 3, 4, 5, 6, 7}), {});
       }},
      {"linear_cross_entropy",
       {{7, 24}, {33, 24}},
       [](auto& t) {
         return linear_cross_entropy(t[0], t[1], Tensor::from<int32_t>({1, 2, 3, 4, 5, 6, 7}));
       }},
      {"linear_cross_entropy in chunks",
       {{7, 24}, {33, 24}},
       [](auto& t) {
         return linear_cross_entropy(t[0], t[1], Tensor::from<int32_t>({1, 2, 3, 4, 5, 6, 7}), {},
                                     2 * 33 * 4);
       }},
  };
}

// The output, then the gradients of all inputs for one fixed gradient of the output.
Tensors run(const Case& c, const Tensors& values, DType dtype) {
  Tensors inputs, results;
  for (const Tensor& value : values) inputs.push_back(requires_gradient(cast(value, dtype)));
  Tape tape;
  const Tensor y = c.f(inputs);
  const Tensor dy =
      cast(cast(random_tensor(y.shape(), 99, DType::f32), values[0].dtype()), y.dtype());
  tape.backward_from({&y, 1}, {&dy, 1});
  results.push_back(y.detach());
  for (const Tensor& x : inputs) results.push_back(gradient(x));
  return results;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Largest |a - b| in roundings of the largest |b|.
double distance(const Tensor& a, const Tensor& b, DType dtype) {
  const std::vector<double> got = values_of(a), expected = values_of(b);
  double worst = got.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i)
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(got[i] - expected[i]) : INFINITY);
  return worst / (rounding(dtype) * largest_magnitude(expected));
}

void expect_rounded_f32(const std::vector<Case>& cases) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Case& c : cases) {
      Tensors values;
      for (const Shape& shape : c.shapes)
        values.push_back(cast(random_tensor(shape, 7 + values.size(), DType::f32), dtype));
      const Tensors got = run(c, values, dtype), expected = run(c, values, DType::f32);
      INFO(c.name << " in " << dtype);
      CHECK(distance(got[0], expected[0], dtype) <= c.roundings * 1.001);
      for (size_t i = 1; i < got.size(); ++i) {
        INFO("gradient of input " << i - 1);
        CHECK(got[i].dtype() == DType::f32);
        CHECK(distance(got[i], expected[i], dtype) <= c.gradient_roundings);
      }
    }
}

}  // namespace

TEST_CASE("element_wise_operations_in_16_bits_are_those_of_f32_rounded") {
  expect_rounded_f32(element_wise());
}
TEST_CASE("sums_and_rearrangements_in_16_bits_are_those_of_f32_rounded") {
  expect_rounded_f32(sums_and_shapes());
}
TEST_CASE("products_and_norms_in_16_bits_are_those_of_f32_rounded") {
  expect_rounded_f32(products_and_norms());
}

TEST_CASE("gradients_of_16_bit_leaves_add_up_in_f32") {
  // 1 + 255 times 2^-9: in bf16, every one of those would be lost.
  const Tensor x = requires_gradient(cast(Tensor::full({4}, 1), DType::bf16));
  for (int i = 0; i < 256; ++i) {
    Tape tape;
    tape.backward(sum(x * (i ? 0x1p-9 : 1.0)));
  }
  CHECK(values_of(gradient(x)) == std::vector<double>(4, 1 + 255 * 0x1p-9));
}

TEST_CASE("16_bit_operations_do_not_depend_on_the_number_of_threads") {
  for (const Case& c : products_and_norms())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Tensors values;
      for (const Shape& shape : c.shapes)
        values.push_back(cast(random_tensor(shape, 7 + values.size(), DType::f32), dtype));
      INFO(c.name << " in " << dtype);
      CHECK(threads_do_not_matter([&] { return run(c, values, dtype); }));
    }
}

TEST_CASE("norms_of_f16_rows_of_rms_1000_are_finite_and_right") {
  // The square of such an element is 10^6, beyond f16's 65,504; so is the sum of a row.
  const Tensor x = cast(affine(random_tensor({3, 2, 64}, 1, DType::f32), 1000, 0), DType::f16);
  for (const std::string& name : all_norms) {
    const auto norm = find_norm(name)(64), wide = find_norm(name)(64);
    convert(*norm, DType::f16);
    const NormContext context(Context{.training = true});
    const Tensor y = norm->forward(x, context),
                 expected = wide->forward(cast(x, DType::f32), context);
    INFO(name);
    CHECK(y.dtype() == DType::f16);
    CHECK(distance(y, expected, DType::f16) <= 2);
  }
}

namespace {

// d sum(f(x)) / dx at x of ones, in dtype.
std::vector<double> slope_at_ones(const Shape& shape, DType dtype,
                                  const std::function<Tensor(const Tensor&)>& f) {
  const Tensor x = requires_gradient(Tensor::full(shape, 1, dtype));
  Tape tape;
  const Tensor y = f(x), dy = Tensor::full(y.shape(), 1, y.dtype());
  tape.backward_from({&y, 1}, {&dy, 1});
  return values_of(gradient(x));
}

}  // namespace

TEST_CASE("gradients_of_parameters_are_summed_and_kept_in_f32") {
  // bf16 holds no 1001, and counting in it ends at 256; f16 counts up to 2048.
  const auto ones = [](const Shape& shape, DType dtype) { return Tensor::full(shape, 1, dtype); };
  for (const DType t : {DType::bf16, DType::f16}) {
    for (const double rows : {1001.0, 3003.0}) {
      const auto n = static_cast<int64_t>(rows);
      INFO(t << ", " << n << " rows");
      CHECK(slope_at_ones({1}, t, [&](const Tensor& x) { return ones({n, 1}, t) + x; })[0] == rows);
      CHECK(slope_at_ones({1}, t, [&](const Tensor& x) {
              return ones({n, 3}, t) * x;
            })[0] == 3 * rows);
      CHECK(slope_at_ones({3, 1}, t, [&](const Tensor& x) {
              return ones({2, 1, n}, t) / x;  // repeated on both sides
            })[0] == -2 * rows);
      CHECK(slope_at_ones({1, 2}, t, [&](const Tensor& x) {
              return where(Tensor::full({n, 1}, 1, DType::i32), x, ones({1, 1}, t));
            })[1] == rows);
      CHECK(slope_at_ones({1, 2}, t, [&](const Tensor& x) {
              return matmul(ones({n, 1}, t), x);
            })[1] == rows);
      CHECK(slope_at_ones({2, 3}, t, [&](const Tensor& x) {  // one matrix for a stack
              return matmul(x, ones({n, 3, 1}, t));
            })[0] == rows);
      CHECK(slope_at_ones({3, 2}, t, [&](const Tensor& x) {
              return matmul(x, ones({n, 3, 1}, t), true);
            })[0] == rows);
      CHECK(slope_at_ones({2, 3}, t, [&](const Tensor& x) {
              return linear(ones({n, 3}, t), x);
            })[0] == rows);
      CHECK(slope_at_ones({2}, t, [&](const Tensor& x) {
              return linear(ones({n, 3}, t), ones({2, 3}, t), x);
            })[0] == rows);
      CHECK(slope_at_ones({2, 2}, t, [&](const Tensor& x) {
              return embedding(x, Tensor::full({n}, 1, DType::i32));
            })[3] == rows);
      CHECK(slope_at_ones({2}, t, [&](const Tensor& x) {
              return rms_norm(ones({n, 2}, t), x, 0);
            })[0] == rows);
      CHECK(slope_at_ones({2}, t, [&](const Tensor& x) {
              return layer_norm(ones({n, 2}, t), ones({2}, t), x);
            })[0] == rows);
    }
  }
}

TEST_CASE("recomputed_gradients_in_16_bits_have_the_bits_of_plain_ones") {
  const auto f = [](const Tensor& x) { return x * x + exp(x) + tanh(x); };
  const auto gradients = [&](bool again) {
    const Tensor w = requires_gradient(cast(random_tensor({257}, 1, DType::f32), DType::bf16));
    Tape tape;
    const Tensor x = silu(w), y = again ? recompute(f, x) : f(x);
    tape.backward(sum(cast(y, DType::f32)));
    return gradient(w);
  };
  CHECK(same_bits(gradients(true), gradients(false)));
}

TEST_CASE("uniform_numbers_in_16_bits_stay_below_their_bound_and_gather_nowhere") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::vector<double> x = values_of(uniform_tensor({1 << 20}, 0, 1, 1, dtype));
    double sum = 0;
    for (const double value : x) sum += value;
    INFO(dtype);
    CHECK(*std::ranges::max_element(x) == 1 - rounding(dtype));
    CHECK(std::ranges::count(x, 0.0) < 8);  // expected below 0.2: 2^20 draws of 24 bits
    CHECK(std::abs(sum / x.size() - 0.5) < 2e-3);
    for (const double value : values_of(uniform_tensor({4096}, -1, 0, 1, dtype))) CHECK(value < 0);
  }
}

TEST_CASE("small_logit_gradients_survive_in_f16_whole_and_in_chunks") {
  // For logits 18 and 0, p of the second class is 1.5e-8, which is no f16; nor is its 1000th part.
  // For 8 and 0, the gradient of x is 2.7e-6, where neighbouring f16 differ by 2 %.
  const auto gradients = [](DType dtype, float logit, size_t chunk_bytes) {
    const Tensor x = requires_gradient(Tensor::full({1000, 1}, 1, dtype));
    const Tensor weight = requires_gradient(cast(Tensor::from<float>({logit, 0}, {2, 1}), dtype));
    const Tensor targets = Tensor::zeros({1000}, DType::i32);
    Tape tape;
    tape.backward(linear_cross_entropy(x, weight, targets, {}, chunk_bytes), 65536);
    return std::pair(values_of(gradient(x))[0], values_of(gradient(weight))[1]);
  };
  for (const size_t chunk_bytes : {1 << 20, 1 << 10}) {
    const auto relative_error = [](double a, double b) { return std::abs(a / b - 1); };
    CHECK(relative_error(gradients(DType::f16, 18, chunk_bytes).second,
                         gradients(DType::f64, 18, 1 << 20).second) < 2e-3);
    CHECK(relative_error(gradients(DType::f16, 8, chunk_bytes).first,
                         gradients(DType::f64, 8, 1 << 20).first) < 2e-3);
  }
}

TEST_CASE("a_scale_that_the_loss_cannot_hold_is_refused") {
  const Tensor x = requires_gradient(cast(Tensor::full({4}, 1), DType::f16));
  Tape tape;
  CHECK_THROWS_WITH(tape.backward(mean(x), 65536),
                    ContainsSubstring("65536 is infinite in f16; use cast(loss, "));
}
