// Norms of single tokens against their formulas: ScaleNorm and dynamic tanh as kernels, the
// variants of layer norm and the composed norms as layers.
#include "layers/token_norms.h"

#include <cmath>

#include "autograd/gradcheck.h"
#include "tests/catch.h"
#include "tests/norms.h"

namespace tapeformer {
namespace {

using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;
constexpr int64_t sizes[] = {1, 31, 33, 257};

double bound_of(DType dtype) { return dtype == DType::f32 ? 1e-5 : 1e-12; }

// ---------------------------------------------------------------- ScaleNorm and dynamic tanh

TEST_CASE("scale_norm_and_dyt_follow_their_formulas") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int64_t C : sizes) {
      const Tensor x = random_tensor({3, 2, C}, 1, dtype), one = random_tensor({1}, 2, dtype);
      const Tensor gamma = random_tensor({C}, 3, dtype), beta = random_tensor({C}, 4, dtype);
      const auto in = values_of(x), gain = values_of(gamma), shift = values_of(beta);
      const double g = values_of(one)[0];
      std::vector<double> scaled, curved;
      for (size_t i = 0; i < in.size(); ++i) {
        double squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += std::pow(in[i / C * C + c], 2);
        scaled.push_back(g * in[i] / std::max(std::sqrt(squares), 0.5));
        curved.push_back(gain[i % C] * std::tanh(g * in[i]) + shift[i % C]);
      }
      CHECK(largest_error(scale_norm(x, one, 0.5), scaled) < bound_of(dtype));
      CHECK(largest_error(dyt(x, one, gamma, beta), curved) < bound_of(dtype));
    }
}

Tensor composed_scale_norm(const Inputs& in) {
  return in[1] * (in[0] * pow(sum(in[0] * in[0], -1, true), -0.5));
}
Tensor composed_dyt(const Inputs& in) { return in[2] * tanh(in[1] * in[0]) + in[3]; }

/// The output and the gradients of all inputs, from a random gradient of the output.
Inputs run(const Function& f, const Inputs& inputs) {
  Inputs leaves;
  for (const Tensor& input : inputs) leaves.push_back(requires_gradient(input.detach()));
  Tape tape;
  const Tensor y = f(leaves), dy = random_tensor(y.shape(), 9, y.dtype());
  tape.backward_from({&y, 1}, {&dy, 1});
  Inputs results = {y};
  for (const Tensor& leaf : leaves) results.push_back(gradient(leaf));
  return results;
}

TEST_CASE("fused_scale_norm_and_dyt_equal_the_composed_ones") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int64_t C : sizes) {
      // With one channel ScaleNorm's dx is 0, and the composed one the difference of two numbers of
      // the size of dy / |x|: away from zero its rounding stays small.
      const Tensor x =
          C == 1 ? uniform_tensor({150, 1}, 1, 2, 1, dtype) : random_tensor({150, C}, 1, dtype);
      const Inputs inputs = {x, random_tensor({1}, 2, dtype), random_tensor({C}, 3, dtype),
                             random_tensor({C}, 4, dtype)};
      const auto expect_equal = [&](const Function& fused, const Function& composed,
                                    const Inputs& in) {
        const Inputs a = run(fused, in), b = run(composed, in);
        for (size_t i = 0; i < a.size(); ++i) {
          INFO(C << " channels, " << name_of(dtype) << ", result " << i);
          CHECK(largest_error(a[i], b[i]) < 10 * bound_of(dtype));
        }
      };
      expect_equal([](const Inputs& in) { return scale_norm(in[0], in[1]); }, composed_scale_norm,
                   {inputs[0], inputs[1]});
      expect_equal([](const Inputs& in) { return dyt(in[0], in[1], in[2], in[3]); }, composed_dyt,
                   inputs);
    }
}

TEST_CASE("gradients_of_scale_norm_and_dyt_are_right") {
  for (const int64_t C : {1, 31, 33}) {
    const Inputs inputs = {random_tensor({5, C}, 1), random_tensor({1}, 2), random_tensor({C}, 3),
                           random_tensor({C}, 4)};
    const GradcheckResult of_scale = gradcheck(
        [](const Inputs& in) { return scale_norm(in[0], in[1]); }, {inputs[0], inputs[1]});
    const GradcheckResult of_dyt =
        gradcheck([](const Inputs& in) { return dyt(in[0], in[1], in[2], in[3]); }, inputs);
    INFO(C << " channels: " << of_scale.message << of_dyt.message);
    CHECK(of_scale);
    CHECK(of_dyt);
  }
  // Rows shorter than epsilon are divided by a constant: only one of these two.
  const Tensor rows = Tensor::from<double>({0.3, -0.2, 3, 4}, {2, 2});
  CHECK(gradcheck([](const Inputs& in) { return scale_norm(in[0], in[1], 1); },
                  {rows, random_tensor({1}, 2)}));
}

TEST_CASE("one_tensor_may_be_several_inputs_of_scale_norm_and_dyt") {
  CHECK(gradcheck([](const Inputs& in) { return scale_norm(in[0], in[0]); },
                  {random_tensor({1}, 1)}));
  CHECK(gradcheck([](const Inputs& in) { return dyt(in[0], in[1], in[0], in[0]); },
                  {random_tensor({7}, 1), random_tensor({1}, 2)}));
  CHECK(gradcheck([](const Inputs& in) { return dyt(in[0], in[1], in[1], in[1]); },
                  {random_tensor({3, 1}, 1), random_tensor({1}, 2)}));
}

TEST_CASE("scale_norm_and_dyt_of_no_rows_have_zero_parameter_gradients") {
  const Tensor one = requires_gradient(Tensor::full({1}, 2));
  const Tensor gamma = requires_gradient(Tensor::full({5}, 2)), x = Tensor::zeros({0, 5});
  Tape tape;
  tape.backward(sum(scale_norm(x, one)) + sum(dyt(x, one, gamma, gamma)));
  CHECK(values_of(gradient(one)) == std::vector<double>{0});
  CHECK(values_of(gradient(gamma)) == std::vector<double>(5, 0));
}

TEST_CASE("scale_norm_and_dyt_say_what_does_not_fit") {
  const Tensor x = Tensor::zeros({2, 4}), one = Tensor::zeros({1}), four = Tensor::zeros({4});
  CHECK_THROWS_WITH(scale_norm(x, four), "scale_norm: g must be [1], got [4]");
  CHECK_THROWS_WITH(scale_norm(x, Tensor::zeros({1}, DType::f64)),
                    ContainsSubstring("scale_norm: dtypes differ: x is f32, g is f64"));
  CHECK_THROWS_WITH(dyt(x, four, four, four), "dyt: alpha must be [1], got [4]");
  CHECK_THROWS_WITH(dyt(x, one, one, four), ContainsSubstring("dyt: gamma must be [4]"));
  CHECK_THROWS_WITH(dyt(x, one, four, {}), ContainsSubstring("dyt: needs gamma and beta [4]"));
}

// ---------------------------------------------------------------- layers

/// (x - mean) / sqrt(variance + 1e-5) of each group of `size` values, in double.
std::vector<double> normed(const std::vector<double>& x, int64_t size) {
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const double* group = x.data() + i / size * size;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < size; ++c) mean += group[c] / size;
    for (int64_t c = 0; c < size; ++c) variance += std::pow(group[c] - mean, 2) / size;
    y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5));
  }
  return y;
}

TEST_CASE("composed_norms_of_tokens_follow_their_formulas") {
  const int64_t C = 48;
  const Tensor x = random_tensor({2, 3, C}, 1);
  const auto in = values_of(x), t = normed(in, C), by_group = normed(in, 16);
  std::vector<double> ada, group, partial;
  const auto group_norm = random_norm("groupnorm", C), partial_norm = random_norm("prmsnorm", C);
  const auto weight = values_of(named_parameters(*group_norm)[0].tensor);
  const auto bias = values_of(named_parameters(*group_norm)[1].tensor);
  for (size_t i = 0; i < in.size(); ++i) {
    double squares = 0;  // of int(0.0625 * 48) = 3 channels
    for (int c = 0; c < 3; ++c) squares += std::pow(in[i / C * C + c], 2) / 3;
    ada.push_back((1 - 0.1 * t[i]) * t[i]);
    group.push_back(weight[i % C] * by_group[i] + bias[i % C]);
    partial.push_back(weight[i % C] * in[i] / std::sqrt(squares + 1e-5));
  }
  CHECK(largest_error(AdaNorm(C).forward(x, {}), ada) < 1e-12);
  CHECK(largest_error(AdaNorm(C, 2, 0.1).forward(x, {}),
                      values_of(2.0 * AdaNorm(C).forward(x, {}))) < 1e-12);
  CHECK(largest_error(group_norm->forward(x, {}), group) < 1e-12);
  CHECK(largest_error(partial_norm->forward(x, {}), partial) < 1e-12);
}

TEST_CASE("the_size_of_a_group_is_the_smallest_divisor_from_16_on") {
  CHECK(default_group_size(64) == 16);
  CHECK(default_group_size(48) == 16);
  CHECK(default_group_size(100) == 20);
  CHECK(default_group_size(768) == 16);
  CHECK(default_group_size(34) == 17);
  CHECK(default_group_size(33) == 33);
  CHECK(default_group_size(31) == 31);
  CHECK(default_group_size(8) == 8);
  CHECK_THROWS_WITH(GroupNorm(12, 5), ContainsSubstring("groups of 5 do not divide 12 channels"));
}

TEST_CASE("group_norm_of_one_group_equals_layer_norm") {
  const Tensor x = random_tensor({2, 3, 24}, 1), dy = random_tensor({2, 3, 24}, 2);
  const auto layer = random_norm("layernorm", 24), group = random_norm("groupnorm", 24);
  static_cast<GroupNorm&>(*group).group_size = 24;
  const auto a = pass_of(*group, x, dy, {}).all(), b = pass_of(*layer, x, dy, {}).all();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(largest_error(a[i], b[i]) < 1e-12);
}

TEST_CASE("norms_of_tokens_start_as_their_papers_say") {
  const auto starts = [](const std::string& name) {
    std::string text;
    const auto norm = find_norm(name)(9);
    for (const NamedTensor& entry : named_parameters(*norm))
      text += entry.name + " " + std::to_string(entry.tensor.numel()) + " " +
              std::to_string(values_of(entry.tensor)[0]).substr(0, 3) + " ";
    return text;
  };
  CHECK(starts("layernorm") == "weight 9 1.0 bias 9 0.0 ");
  CHECK(starts("layernorm-detach") == "weight 9 1.0 bias 9 0.0 ");
  CHECK(starts("layernorm-nobias") == "weight 9 1.0 ");
  CHECK(starts("layernorm-simple") == "");
  CHECK(starts("rmsnorm") == "weight 9 1.0 ");
  CHECK(starts("prmsnorm") == "weight 9 1.0 ");
  CHECK(starts("scalenorm") == "weight 1 3.0 ");
  CHECK(starts("adanorm") == "");
  CHECK(starts("groupnorm") == "weight 9 1.0 bias 9 0.0 ");
  CHECK(starts("dyt") == "alpha 1 0.5 weight 9 1.0 bias 9 0.0 ");
}

TEST_CASE("fused_variants_of_layer_norm_equal_the_composed_ones") {
  for (const char* name : {"layernorm-simple", "layernorm-detach"}) {
    INFO(name);
    const auto norm = random_norm(name, 33);
    const auto results = [&](bool fused) {
      return run(
          [&](const Inputs& in) {
            const SumAndNorm out = fused ? norm->add_forward(in[0], in[1], 1.5, {})
                                         : norm->Norm::add_forward(in[0], in[1], 1.5, {});
            return concat({out.sum, out.norm}, 0);
          },
          {random_tensor({2, 3, 33}, 1), random_tensor({2, 3, 33}, 2)});
    };
    const Inputs fused = results(true), composed = results(false);
    for (size_t i = 0; i < fused.size(); ++i) CHECK(largest_error(fused[i], composed[i]) < 1e-12);
  }
}

// ---------------------------------------------------------------- backward that is no derivative

/// The gradient of sum(f(x) dy) by central differences.
std::vector<double> numeric_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                     const Tensor& dy) {
  std::vector<double> result;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto moved = [&](double step) {
      const Tensor other = x.clone();
      other.data<double>()[i] += step;
      return sum(f(other) * dy).item();
    };
    result.push_back((moved(1e-5) - moved(-1e-5)) / 2e-5);
  }
  return result;
}

struct Rows {  // what the formulas need of x [6, C], by row
  std::vector<double> mean, rstd;
};
Rows moments_of(const std::vector<double>& x, int64_t C) {
  Rows rows;
  for (size_t at = 0; at < x.size(); at += C) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) mean += x[at + c] / C;
    for (int64_t c = 0; c < C; ++c) variance += std::pow(x[at + c] - mean, 2) / C;
    rows.mean.push_back(mean);
    rows.rstd.push_back(1 / std::sqrt(variance + 1e-5));
  }
  return rows;
}

TEST_CASE("adanorm_takes_its_factor_for_a_constant_in_backward") {
  const int64_t C = 17;
  const Tensor x = random_tensor({2, 3, C}, 1), dy = random_tensor({2, 3, C}, 2);
  AdaNorm norm(C);
  const NormPass pass = pass_of(norm, x, dy, {});
  // With H = (1 - k t) dy: dx = r (H - mean(H) - t mean(H t)), layer norm's gradient.
  const auto in = values_of(x), d = values_of(dy), t = normed(in, C);
  const Rows rows = moments_of(in, C);
  std::vector<double> expected;
  for (size_t i = 0; i < in.size(); ++i) {
    double mean_h = 0, mean_ht = 0;
    const auto h = [&](size_t j) { return (1 - 0.1 * t[j]) * d[j]; };
    for (size_t j = i / C * C; j < i / C * C + C; ++j) {
      mean_h += h(j) / C;
      mean_ht += h(j) * t[j] / C;
    }
    expected.push_back(rows.rstd[i / C] * (h(i) - mean_h - t[i] * mean_ht));
  }
  CHECK(largest_error(pass.dx, expected) < 1e-12);
  const Tensor factor = affine(layer_norm(x, {}, {}), -0.1, 1);
  const auto frozen = [&](const Tensor& x) { return factor * layer_norm(x, {}, {}); };
  CHECK(largest_error(pass.dx, numeric_gradient(frozen, x, dy)) < 1e-7);
  CHECK_FALSE(gradcheck([&](const Inputs& in) { return norm.forward(in[0], {}); }, {x}));
}

TEST_CASE("detached_layer_norm_takes_mean_and_deviation_for_constants_in_backward") {
  const int64_t C = 17;
  const Tensor x = random_tensor({2, 3, C}, 1), dy = random_tensor({2, 3, C}, 2);
  const auto norm = random_norm("layernorm-detach", C), plain = random_norm("layernorm", C);
  const NormPass pass = pass_of(*norm, x, dy, {}), of_plain = pass_of(*plain, x, dy, {});
  CHECK(same_bits(pass.y, of_plain.y));
  for (size_t i = 0; i < 2; ++i)
    CHECK(largest_error(pass.gradients[i], of_plain.gradients[i]) < 1e-12);
  const Rows rows = moments_of(values_of(x), C);
  const auto weight = values_of(named_parameters(*norm)[0].tensor), d = values_of(dy);
  std::vector<double> expected;  // r weight dy
  for (size_t i = 0; i < d.size(); ++i) expected.push_back(rows.rstd[i / C] * weight[i % C] * d[i]);
  CHECK(largest_error(pass.dx, expected) < 1e-12);
  const Tensor mean = Tensor::from(rows.mean, {2, 3, 1}), rstd = Tensor::from(rows.rstd, {2, 3, 1});
  const Tensor gain = named_parameters(*norm)[0].tensor.detach();
  const auto frozen = [&](const Tensor& x) { return gain * ((x - mean) * rstd); };
  CHECK(largest_error(pass.dx, numeric_gradient(frozen, x, dy)) < 1e-7);
  CHECK_FALSE(gradcheck([&](const Inputs& in) { return norm->forward(in[0], {}); }, {x}));
}

}  // namespace
}  // namespace tapeformer
