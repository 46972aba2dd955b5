// Attention against the same written with plain operations, its masks, and rotary positions.
#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  Generator generator({seed, Purpose::evaluation});
  const Tensor x = Tensor::empty(shape, DType::f64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = 2 * generator.uniform() - 1;
  return x;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const auto x = cast(a, DType::f64).to_vector<double>(),
             y = cast(b, DType::f64).to_vector<double>();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x[i] - y[i]));
  }
  return worst;
}

// -inf [B, T, S] where entry b's query t may not see key s, otherwise head h's position bias.
Tensor mask_of(int64_t B, int64_t T, int64_t S, int64_t h, const AttentionOptions& options) {
  const Tensor mask = Tensor::zeros({B, T, S}, DType::f64);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t s = 0; s < S; ++s) {
        double& value = mask.data<double>()[(b * T + t) * S + s];
        const int64_t position = t + S - T;
        if (options.alibi) value = -kernels::alibi_slope(h, options.heads) * (position - s);
        if (options.lengths.defined() && s >= options.lengths.data<int32_t>()[b]) value = -INFINITY;
        if (options.causal && s > position) value = -INFINITY;
      }
  return mask;
}

Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionOptions& options) {
  const int64_t D = q.dim(2) / options.heads;
  const int64_t group = options.heads / (options.kv_heads ? options.kv_heads : options.heads);
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(D));
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < options.heads; ++h) {
    const int64_t at = h * D, kv = h / group * D;
    const Tensor scores =
        matmul(slice(q, 2, at, at + D), slice(k, 2, kv, kv + D), false, true) * scale;
    const Tensor mask = mask_of(q.dim(0), q.dim(1), k.dim(1), h, options);
    heads.push_back(matmul(softmax(scores + mask), slice(v, 2, kv, kv + D)));
  }
  return concat(heads, 2);
}

struct Case {
  const char* name;
  int64_t B, T, S, D;
  AttentionOptions options;
};

std::vector<Case> cases() {
  const Tensor lengths = Tensor::from<int32_t>({33, 130}), none = Tensor::from<int32_t>({0, 70});
  return {{"plain", 2, 31, 31, 7, {.heads = 3}},
          {"causal over several blocks", 1, 130, 130, 5, {.heads = 2, .causal = true}},
          {"grouped", 2, 65, 65, 4, {.heads = 6, .kv_heads = 2, .causal = true}},
          {"one key-value head", 1, 70, 70, 3, {.heads = 4, .kv_heads = 1}},
          {"padding", 2, 130, 130, 4, {.heads = 2, .lengths = lengths}},
          {"causal padding", 2, 130, 130, 4, {.heads = 2, .causal = true, .lengths = lengths}},
          {"nothing but padding", 2, 70, 70, 4, {.heads = 2, .lengths = none}},
          {"cross", 2, 33, 97, 5, {.heads = 2, .kv_heads = 1}},
          {"causal with a past", 1, 70, 131, 5, {.heads = 2, .causal = true}},
          {"more queries than keys", 1, 131, 33, 5, {.heads = 2, .causal = true}},
          {"alibi", 2, 70, 70, 5, {.heads = 3, .causal = true, .alibi = true}},
          {"alibi with a past", 1, 33, 70, 5, {.heads = 2, .alibi = true}},
          {"scale", 1, 31, 31, 1, {.heads = 2, .scale = 3}},
          {"one token", 3, 1, 1, 1, {.heads = 1}}};
}

struct Results {
  Tensor out, dq, dk, dv;
};

template <class F>
Results run(const Case& c, DType dtype, F attend) {
  const int64_t kv = c.options.kv_heads ? c.options.kv_heads : c.options.heads;
  const auto leaf = [&](const Shape& shape, uint64_t seed) {
    return requires_gradient(cast(random_tensor(shape, seed), dtype));
  };
  const Tensor q = leaf({c.B, c.T, c.options.heads * c.D}, 1);
  const Tensor k = leaf({c.B, c.S, kv * c.D}, 2), v = leaf({c.B, c.S, kv * c.D}, 3);
  Tape tape;
  const Tensor out = attend(q, k, v);
  const Tensor dout = cast(random_tensor(out.shape(), 4), dtype);
  tape.backward_from({&out, 1}, {&dout, 1});
  return {out, gradient(q), gradient(k), gradient(v)};
}

void check_close(const Results& a, const Results& b, double bound) {
  CHECK(largest_difference(a.out, b.out) < bound);
  CHECK(largest_difference(a.dq, b.dq) < bound);
  CHECK(largest_difference(a.dk, b.dk) < bound);
  CHECK(largest_difference(a.dv, b.dv) < bound);
}

}  // namespace

TEST_CASE("attention_equals_composed_softmax_attention_forward_and_backward") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const Results expected = run(c, DType::f64, [&](const auto& q, const auto& k, const auto& v) {
      return composed(q, k, v, c.options);
    });
    const auto attend = [&](const auto& q, const auto& k, const auto& v) {
      return attention(q, k, v, c.options);
    };
    check_close(run(c, DType::f64, attend), expected, 1e-12);
    check_close(run(c, DType::f32, attend), expected, 3e-5);
  }
}

TEST_CASE("attention_gradients") {
  const Tensor lengths = Tensor::from<int32_t>({0, 3});
  const AttentionOptions options[] = {
      {.heads = 2},
      {.heads = 4, .kv_heads = 2, .causal = true},
      {.heads = 4, .kv_heads = 1, .causal = true, .alibi = true, .lengths = lengths}};
  for (const AttentionOptions& o : options) {
    const int64_t kv = o.kv_heads ? o.kv_heads : o.heads;
    const auto separate =
        gradcheck([&](const std::vector<Tensor>& x) { return attention(x[0], x[1], x[2], o); },
                  {random_tensor({2, 4, o.heads * 3}, 1), random_tensor({2, 5, kv * 3}, 2),
                   random_tensor({2, 5, kv * 3}, 3)});
    INFO(separate.message);
    CHECK(separate);
    const auto packed = gradcheck([&](const std::vector<Tensor>& x) { return attention(x[0], o); },
                                  {random_tensor({2, 4, (o.heads + 2 * kv) * 3}, 4)});
    INFO(packed.message);
    CHECK(packed);
  }
}

TEST_CASE("attention_gradients_of_one_tensor_used_as_queries_keys_and_values") {
  const AttentionOptions options{.heads = 2, .causal = true};
  const auto all =
      gradcheck([&](const std::vector<Tensor>& x) { return attention(x[0], x[0], x[0], options); },
                {random_tensor({2, 5, 6}, 1)});
  INFO(all.message);
  CHECK(all);
  const auto keys_and_values =
      gradcheck([&](const std::vector<Tensor>& x) { return attention(x[0], x[1], x[1], options); },
                {random_tensor({2, 5, 6}, 1), random_tensor({2, 7, 6}, 2)});
  INFO(keys_and_values.message);
  CHECK(keys_and_values);
}

TEST_CASE("packed_attention_equals_separate_attention_bit_for_bit") {
  const AttentionOptions options{.heads = 4, .kv_heads = 2, .causal = true};
  const Tensor q = random_tensor({2, 70, 20}, 1), k = random_tensor({2, 70, 10}, 2);
  const Tensor v = random_tensor({2, 70, 10}, 3), dout = random_tensor({2, 70, 20}, 4);
  const Tensor qkv = requires_gradient(concat({q, k, v}, 2));
  for (const Tensor& x : {q, k, v}) requires_gradient(x);
  Tensor outs[2];
  {
    Tape tape;
    outs[0] = attention(q, k, v, options);
    tape.backward_from({&outs[0], 1}, {&dout, 1});
  }
  {
    Tape tape;
    outs[1] = attention(qkv, options);
    tape.backward_from({&outs[1], 1}, {&dout, 1});
  }
  CHECK(same_bits(outs[0], outs[1]));
  CHECK(same_bits(concat({gradient(q), gradient(k), gradient(v)}, 2), gradient(qkv)));
}

TEST_CASE("causal_attention_ignores_later_tokens") {
  const AttentionOptions options{.heads = 2, .causal = true};
  const Tensor x = cast(random_tensor({1, 130, 3 * 2 * 8}, 1), DType::f32), changed = x.clone();
  for (int64_t t = 77; t < 130; ++t)
    for (int64_t c = 0; c < 48; ++c) changed.data<float>()[t * 48 + c] += 3;
  const Tensor a = attention(x, options), b = attention(changed, options);
  CHECK(same_bits(slice(a, 1, 0, 77), slice(b, 1, 0, 77)));
  for (int64_t t = 77; t < 130; ++t)
    CHECK(largest_difference(slice(a, 1, t, t + 1), slice(b, 1, t, t + 1)) > 1e-3);
}

TEST_CASE("padding_changes_nothing_whatever_it_holds") {
  const AttentionOptions options{.heads = 2, .lengths = Tensor::from<int32_t>({33})};
  const Tensor q = random_tensor({1, 5, 6}, 1), k = random_tensor({1, 70, 6}, 2);
  const Tensor v = random_tensor({1, 70, 6}, 3), out = attention(q, k, v, options);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::fill_n(k.data<double>() + 33 * 6, 37 * 6, nan);
  std::fill_n(v.data<double>() + 33 * 6, 37 * 6, nan);
  CHECK(same_bits(attention(q, k, v, options), out));
  CHECK(largest_difference(
            out, attention(q, slice(k, 1, 0, 33), slice(v, 1, 0, 33), {.heads = 2})) < 1e-14);
}

TEST_CASE("a_query_that_sees_no_key_gives_zeros_and_zero_gradient") {
  const AttentionOptions options{.heads = 2, .lengths = Tensor::from<int32_t>({0})};
  const Tensor qkv = requires_gradient(random_tensor({1, 31, 18}, 1));
  Tape tape;
  const Tensor out = attention(qkv, options), dout = random_tensor({1, 31, 6}, 2);
  tape.backward_from({&out, 1}, {&dout, 1});
  CHECK(out.to_vector<double>() == std::vector<double>(31 * 6, 0.0));
  CHECK(gradient(qkv).to_vector<double>() == std::vector<double>(31 * 18, 0.0));
}

TEST_CASE("large_scores_do_not_overflow") {
  const Tensor q = Tensor::full({1, 3, 4}, 1e4), k = cast(random_tensor({1, 5, 4}, 1), DType::f32);
  const Tensor out = attention(q, k, Tensor::full({1, 5, 4}, 2), {.heads = 1});
  for (float value : out.to_vector<float>()) CHECK(value == Approx(2));
}

TEST_CASE("alibi_slopes_are_those_of_the_paper") {
  for (int h = 0; h < 8; ++h) CHECK(kernels::alibi_slope(h, 8) == std::exp2(-(h + 1)));
  CHECK(kernels::alibi_slope(0, 16) == std::exp2(-0.5));
  CHECK(kernels::alibi_slope(15, 16) == std::exp2(-8.0));
  // Twelve heads: those of eight, then every second of sixteen.
  CHECK(kernels::alibi_slope(7, 12) == std::exp2(-8.0));
  CHECK(kernels::alibi_slope(8, 12) == std::exp2(-0.5));
  CHECK(kernels::alibi_slope(9, 12) == std::exp2(-1.5));
  CHECK(kernels::alibi_slope(11, 12) == std::exp2(-3.5));
}

TEST_CASE("attention_has_the_same_bits_on_one_and_two_threads") {
  const Case c{"", 2, 200, 200, 32, {.heads = 4, .kv_heads = 2, .causal = true}};
  const auto attend = [&](const auto& q, const auto& k, const auto& v) {
    return attention(q, k, v, c.options);
  };
  const int before = num_threads();
  set_num_threads(1);
  const Results one = run(c, DType::f32, attend);
  set_num_threads(2);
  const Results two = run(c, DType::f32, attend);
  set_num_threads(before);
  CHECK(same_bits(one.out, two.out));
  CHECK(same_bits(one.dq, two.dq));
  CHECK(same_bits(one.dk, two.dk));
  CHECK(same_bits(one.dv, two.dv));
}

TEST_CASE("cached_attention_equals_attention_over_the_filled_part") {
  const AttentionOptions options{.heads = 4, .kv_heads = 2, .causal = true, .alibi = true};
  const Tensor k_cache = random_tensor({2, 50, 10}, 1), v_cache = random_tensor({2, 50, 10}, 2);
  for (int64_t T : {1, 3}) {
    const Tensor q = random_tensor({2, T, 20}, 3);
    const Tensor expected =
        attention(q, slice(k_cache, 1, 0, 37), slice(v_cache, 1, 0, 37), options);
    CHECK(largest_difference(attention_cached(q, k_cache, v_cache, 37, options), expected) < 1e-14);
  }
  const Tensor q = requires_gradient(random_tensor({2, 1, 20}, 3));
  Tape tape;
  CHECK_THROWS_WITH(attention_cached(q, k_cache, v_cache, 37, options),
                    ContainsSubstring("attention_cached: is not differentiable"));
}

TEST_CASE("empty_attention_is_empty") {
  const Tensor none = Tensor::zeros({0, 5, 12}), k = Tensor::zeros({2, 0, 4});
  CHECK(attention(none, {.heads = 2}).shape() == Shape{0, 5, 4});
  const Tensor q = Tensor::full({2, 3, 4}, 1);
  CHECK(attention(q, k, k, {.heads = 2}).to_vector<float>() == std::vector<float>(24, 0.0f));
}

TEST_CASE("attention_says_what_does_not_fit") {
  const Tensor x = Tensor::zeros({2, 5, 12});
  CHECK_THROWS_WITH(attention(x, x, x, {.heads = 5}),
                    ContainsSubstring("5 heads do not divide 12 channels"));
  CHECK_THROWS_WITH(attention(x, {.heads = 5}), ContainsSubstring("attention: 5 heads"));
  CHECK_THROWS_WITH(attention(x, x, x, {.heads = 6, .kv_heads = 4}),
                    ContainsSubstring("4 key-value heads do not divide 6 heads"));
  CHECK_THROWS_WITH(attention(x, x, x, {.heads = 6, .kv_heads = 2}),
                    ContainsSubstring("need 4 channels, got k [2, 5, 12]"));
  CHECK_THROWS_WITH(attention(x, Tensor::zeros({12}), x, {.heads = 2}),
                    ContainsSubstring("attention: needs q [B, T, H D], k and v [B, S, K D]"));
  CHECK_THROWS_WITH(attention(x, x, Tensor::zeros({2, 4, 12}), {.heads = 2}),
                    ContainsSubstring("k and v differ: [2, 5, 12] and [2, 4, 12]"));
  CHECK_THROWS_WITH(attention(x, x, x, {.heads = 2, .lengths = Tensor::from<int32_t>({1, 2, 3})}),
                    ContainsSubstring("lengths must be i32 [2], one for each sample, got i32 [3]"));
  CHECK_THROWS_WITH(attention(x, cast(x, DType::f64), x, {.heads = 2}),
                    ContainsSubstring("attention: dtypes differ: q is f32, k is f64"));
  CHECK_THROWS_WITH(attention(x, x, cast(x, DType::f64), {.heads = 2}),
                    ContainsSubstring("attention: dtypes differ: q is f32, v is f64"));
  const Tensor integers = Tensor::zeros({2, 5, 12}, DType::i32);
  CHECK_THROWS_WITH(attention(integers, {.heads = 2}),
                    ContainsSubstring("attention: needs floating-point numbers, got i32"));
  CHECK_THROWS_WITH(rotary(integers, 2, 6),
                    ContainsSubstring("rotary: needs floating-point numbers, got i32"));
  CHECK_THROWS_WITH(attention_cached(x, x, x, 6, {.heads = 2}),
                    ContainsSubstring("attention_cached: 6 keys of a cache of 5"));
  CHECK_THROWS_WITH(rotary(x, 4, 3), ContainsSubstring("must be even, got 3"));
  CHECK_THROWS_WITH(rotary(x, 4, 4), ContainsSubstring("4 heads of 4 channels do not fit"));
}

TEST_CASE("rotary_turns_each_pair_by_its_angle") {
  const Tensor x = random_tensor({2, 3, 14}, 1), y = rotary(x, 2, 6, 5, 100);
  for (int64_t n = 0; n < 6; ++n) {
    const double *in = x.data<double>() + n * 14, *out = y.data<double>() + n * 14;
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = (5 + n % 3) * std::pow(100.0, -2.0 * i / 6);
        const double a = in[h * 6 + i], b = in[h * 6 + i + 3];
        CHECK(out[h * 6 + i] == Approx(a * std::cos(angle) - b * std::sin(angle)).margin(1e-14));
        CHECK(out[h * 6 + i + 3] ==
              Approx(b * std::cos(angle) + a * std::sin(angle)).margin(1e-14));
      }
    CHECK(out[12] == in[12]);
    CHECK(out[13] == in[13]);
  }
}

TEST_CASE("rotary_scores_depend_on_the_distance_alone") {
  const Tensor q = random_tensor({1, 1, 8}, 1), k = random_tensor({1, 1, 8}, 2);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    return sum(rotary(q, 1, 8, at_q) * rotary(k, 1, 8, at_k)).item();
  };
  CHECK(score(9, 4) == Approx(score(105, 100)).margin(1e-12));
  CHECK(std::abs(score(9, 4) - score(9, 5)) > 1e-3);
}

TEST_CASE("rotary_gradients") {
  const auto result =
      gradcheck([](const std::vector<Tensor>& x) { return rotary(x[0], 2, 6, 3) * x[0]; },
                {random_tensor({2, 5, 13}, 1)});
  INFO(result.message);
  CHECK(result);
}
