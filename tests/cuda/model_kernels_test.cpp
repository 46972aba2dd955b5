// Products, linear layers, attention, embedding, loss and optimizer steps on CUDA against the CPU
// in double.
#include "emulation.h"
#include "kernel_check.h"

using namespace tapeformer;

namespace {
const Tensor none;  // not given
}

TEST_CASE("cuda_products_of_all_forms") {
  const int64_t m = 33, n = 17, k = 31;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const int form : {0, 1, 2, 3}) {  // both plain, both batched, only a, only b
        const Shape plain_a = ta ? Shape{k, m} : Shape{m, k};
        const Shape plain_b = tb ? Shape{n, k} : Shape{k, n};
        const Shape a = form == 0 || form == 3 ? plain_a : Shape{2, 3, plain_a[0], plain_a[1]};
        const Shape b = form == 0 || form == 2 ? plain_b : Shape{2, 3, plain_b[0], plain_b[1]};
        const Shape c = form == 0 ? Shape{m, n} : Shape{2, 3, m, n};
        INFO("transposed " << ta << tb << ", form " << form);
        check_kernel(
            "matmul", {random_tensor(a, 1), random_tensor(b, 2)}, {c},
            [&](const Inputs& in, const Outputs& out) {
              kernels::matmul(in[0], ta, in[1], tb, 0.5, out[0]);
            },
            2e-5);
      }
}

namespace {

void check_linear(int64_t O) {
  using kernels::Activation;
  const int64_t N = 37, I = 19;
  const Tensor x = random_tensor({N, I}, 1), weight = random_tensor({O, I}, 2);
  const Tensor bias = random_tensor({O}, 3), dy = random_tensor({N, O}, 4);
  for (const Activation f : {Activation::none, Activation::relu, Activation::gelu,
                             Activation::gelu_tanh, Activation::silu}) {
    const bool active = f != Activation::none;
    check_kernel("linear", {x, weight, bias}, {{Shape{N, O}, false}, {Shape{N, O}, false}},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::linear_forward(in[0], in[1], in[2], f,
                                           active ? out[0].tensor : Tensor{}, out[1].tensor);
                   if (!active) out[0].tensor.fill(0);
                 },
                 {2e-5, active ? 2.0 : 0.0});
    check_kernel("linear_without_z", {x, weight}, {{Shape{N, O}, false}},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::linear_forward(in[0], in[1], none, f, none, out[0].tensor);
                 },
                 {2e-5, active ? 2.0 : 0.0});
    if (active)
      check_kernel("activation_backward", {dy, random_tensor({N, O}, 5)}, {{Shape{N, O}, false}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::bias_activation_backward(in[0], in[1], f, out[0].tensor,
                                                       Destination{});
                   });
    check_kernel("bias_activation_backward", {dy, random_tensor({N, O}, 5)},
                 {{Shape{N, O}, false}, Shape{O}}, [&](const Inputs& in, const Outputs& out) {
                   if (!active) out[0].tensor.fill(0);
                   kernels::bias_activation_backward(in[0], in[1], f,
                                                     active ? out[0].tensor : Tensor{}, out[1]);
                 });
  }
  check_kernel(
      "swiglu", {random_tensor({N, 2 * O}, 1)}, {{Shape{N, O}, false}},
      [](const Inputs& in, const Outputs& out) { kernels::swiglu_forward(in[0], out[0].tensor); });
  check_kernel(
      "swiglu_backward", {dy, random_tensor({N, 2 * O}, 1)}, {Shape{N, 2 * O}},
      [](const Inputs& in, const Outputs& out) { kernels::swiglu_backward(in[0], in[1], out[0]); });
}

}  // namespace

TEST_CASE("cuda_linear_layers_and_their_gradients") {
  check_linear(45);
  check_linear(48);  // 16 bytes at a time
}

namespace {

struct AttentionCase {
  kernels::AttentionShape shape;
  Tensor lengths;
  int64_t gap = 0;       // numbers between the rows of q
  int64_t dq_gap = 0;    // and of dq
  double roundings = 0;  // of weights on their way to a product, see Tolerance
};

// q, k and v packed into rows of one tensor [B, T, (H + 2 KV) D], as a layer packs them.
void check_attention(const AttentionCase& c) {
  const kernels::AttentionShape& s = c.shape;
  const int64_t D = s.head_size, q_width = s.heads * D, kv_width = s.kv_heads * D;
  const Shape q_shape{s.batch, s.queries, q_width};
  const Shape q_with_gaps{s.batch, s.queries, q_width + c.gap},
      dq_shape{s.batch, s.queries, q_width + c.dq_gap}, kv_shape{s.batch, s.keys, 2 * kv_width};
  const auto queries = [=](const Tensor& x, bool accumulate = false) {
    return Heads{x, 0, s.queries * x.dim(2), x.dim(2), accumulate};
  };
  const auto keys = [=](const Tensor& x, int64_t part, bool accumulate = false) {
    return Heads{x, part * kv_width, s.keys * 2 * kv_width, 2 * kv_width, accumulate};
  };
  const Tensor q = random_tensor(q_with_gaps, 1), kv = random_tensor(kv_shape, 2);
  const Tensor out = Tensor::empty(q_shape, DType::f64);
  const Tensor lse = Tensor::empty({s.batch, s.heads, s.queries}, DType::f64);
  kernels::attention_forward(queries(q), keys(kv, 0), keys(kv, 1), c.lengths, s, out, lse);
  check_kernel("attention", {q, kv, c.lengths}, {{q_shape, false}, {lse.shape(), DType::f32}},
               [&](const Inputs& in, const Outputs& out) {
                 kernels::attention_forward(queries(in[0]), keys(in[1], 0), keys(in[1], 1), in[2],
                                            s, out[0].tensor, out[1].tensor);
               },
               {1e-5, c.roundings});
  if (c.roundings)  // lse comes before any is rounded
    check_kernel("attention_lse", {q, kv, c.lengths}, {{lse.shape(), DType::f32}},
                 [&](const Inputs& in, const Outputs& out) {
                   kernels::attention_forward(queries(in[0]), keys(in[1], 0), keys(in[1], 1), in[2],
                                              s, in[0].empty_like(q_shape), out[0].tensor);
                 });
  check_kernel(
      "attention_backward", {q, kv, c.lengths, out, {lse, true}, random_tensor(q_shape, 3)},
      {dq_shape, kv_shape},
      [&](const Inputs& in, const Outputs& out) {
        const bool adds = out[0].accumulate;
        if (c.dq_gap && !adds) out[0].tensor.fill(0);  // gaps are compared, too
        kernels::attention_backward(queries(in[0]), keys(in[1], 0), keys(in[1], 1), in[2], s, in[3],
                                    in[4], in[5], queries(out[0].tensor, adds),
                                    keys(out[1].tensor, 0, adds), keys(out[1].tensor, 1, adds));
      },
      {1e-3, c.roundings});
}

kernels::AttentionShape attention_shape(int64_t T, int64_t S, int64_t H, int64_t KV, int64_t D,
                                        bool causal, bool alibi = false) {
  return {2, T, S, H, KV, D, causal, alibi, 1 / std::sqrt(static_cast<double>(D))};
}

}  // namespace

TEST_CASE("cuda_attention_and_its_gradients") {
  check_attention({attention_shape(33, 33, 3, 3, 5, true), {}});
  check_attention({attention_shape(31, 70, 2, 2, 16, false), {}});
  check_attention({attention_shape(40, 65, 4, 2, 33, true), Tensor::from<int32_t>({65, 20})});
  check_attention({attention_shape(70, 33, 3, 1, 8, true, true), {}});  // early queries see nothing
  check_attention({attention_shape(5, 40, 2, 2, 65, false), Tensor::from<int32_t>({40, 0})});
  check_attention({attention_shape(3, 34, 1, 1, 129, true), {}});
}

// In 16 bits these run on tensor cores, which take weights and their gradients rounded.
TEST_CASE("cuda_attention_on_tensor_cores") {
  const auto check = [](const kernels::AttentionShape& shape, const Tensor& lengths = {}) {
    INFO(shape.queries << " queries, " << shape.keys << " keys, heads of " << shape.head_size);
    check_attention({shape, lengths, 0, 0, 1});
  };
  check(attention_shape(33, 33, 3, 3, 32, true));
  check(attention_shape(70, 131, 2, 1, 32, false));
  check(attention_shape(129, 65, 2, 2, 32, true));  // early queries see nothing
  check(attention_shape(67, 100, 2, 1, 32, true, true), Tensor::from<int32_t>({100, 17}));
  check(attention_shape(65, 97, 1, 1, 64, true));
  check(attention_shape(5, 40, 2, 2, 64, false, true), Tensor::from<int32_t>({40, 0}));
  check(attention_shape(131, 150, 2, 1, 64, true, true), Tensor::from<int32_t>({150, 100}));
  check(attention_shape(34, 66, 2, 1, 128, true));
  check(attention_shape(67, 40, 1, 1, 128, false, true), Tensor::from<int32_t>({0, 35}));
  check(attention_shape(1, 1, 1, 1, 64, true));
}

namespace {

std::vector<float> as_floats(const Tensor& x) {
  const Tensor wide = Tensor::empty(x.shape(), DType::f32);
  wide.copy_from(x.to(Device::cpu));
  return wide.to_vector<float>();
}

}  // namespace

TEST_CASE("cuda_attention_on_tensor_cores_is_the_same_in_every_order_of_threads") {
  using cuda_emulator::Order;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const int64_t D : {32, 64, 128}) {
      INFO(dtype << ", heads of " << D);
      const kernels::AttentionShape s = attention_shape(20, 70, 2, 1, D, false, true);
      const auto random = [&](int64_t rows, int64_t width, uint64_t seed) {
        const Tensor x = Tensor::empty({s.batch, rows, width}, dtype);
        x.copy_from(random_tensor(x.shape(), seed));
        return x.to(Device::cuda);
      };
      const Tensor q = random(s.queries, 2 * D, 1), k = random(s.keys, D, 2),
                   v = random(s.keys, D, 3), dout = random(s.queries, 2 * D, 4);
      const auto heads = [](const Tensor& x) { return Heads{x, 0, x.dim(1) * x.dim(2), x.dim(2)}; };
      std::vector<std::vector<float>> first;
      for (const Order order : {Order::forward, Order::reverse, Order::random}) {
        cuda_emulator::set_order(order, 5);
        const Tensor out = q.empty_like(q.shape()), dq = q.empty_like(q.shape()),
                     dk = k.empty_like(k.shape()), dv = v.empty_like(v.shape());
        const Tensor lse = Tensor::empty({s.batch, s.heads, s.queries}, DType::f32, Device::cuda);
        kernels::attention_forward(heads(q), heads(k), heads(v), none, s, out, lse);
        kernels::attention_backward(heads(q), heads(k), heads(v), none, s, out, lse, dout,
                                    heads(dq), heads(dk), heads(dv));
        std::vector<std::vector<float>> got;
        for (const Tensor& x : {out, lse, dq, dk, dv}) got.push_back(as_floats(x));
        if (first.empty()) first = got;
        CHECK(got == first);
      }
      cuda_emulator::set_order(Order::forward);
    }
}

TEST_CASE("cuda_attention_takes_rows_that_lie_odd") {
  check_attention({attention_shape(33, 40, 2, 2, 32, true), {}, 1});
  check_attention({attention_shape(33, 40, 2, 2, 32, true), {}, 0, 1, 1});
}

TEST_CASE("cuda_attention_takes_a_negative_scale") {
  kernels::AttentionShape shape = attention_shape(33, 40, 2, 2, 32, true);
  shape.scale = -shape.scale;
  check_attention({shape, {}});
}

TEST_CASE("cuda_rotary_positions") {
  const auto check = [](int64_t head_size, int64_t rest) {
    const Shape shape{2, 9, 3 * head_size + rest};
    for (const bool inverse : {false, true})
      check_kernel("rotary", {random_tensor(shape, 1)}, {shape},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::rotary(in[0], 3, head_size, 1000, 10000, inverse, out[0]);
                   });
  };
  check(10, 7);
  check(32, 16);  // 16 bytes at a time
}

TEST_CASE("cuda_embedding_gradients_sum_over_equal_indices") {
  struct Size {
    int64_t N, V, C;
  };
  // The last row of the table is not used. Some sort many positions; some have one index only.
  for (const auto [N, V, C] :
       {Size{2100, 37, 131}, Size{2100, 37, 136}, Size{9001, 200, 3}, Size{9001, 5, 8},
        Size{500, 2, 8}, Size{64, 2, 7}, Size{65, 2, 7}, Size{1, 3, 1032}, Size{0, 3, 8}}) {
    INFO(N << " indices below " << V << ", " << C << " channels");
    const Tensor indices = random_indices(N, static_cast<int32_t>(V - 1), 1);
    check_kernel("embedding", {random_tensor({V, C}, 2), indices}, {{Shape{N, C}, false}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::embedding_forward(in[0], in[1], out[0].tensor);
                 });
    check_kernel("embedding_backward", {random_tensor({N, C}, 3), indices}, {Shape{V, C}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::embedding_backward(in[0], in[1], out[0]);
                 });
  }
}

TEST_CASE("cuda_cross_entropy_and_its_gradient") {
  for (const int64_t V : {5, 65, 1030, 8193, 64, 1040, 8200})  // the last three 16 bytes at a time
    for (const double smoothing : {0.0, 0.1}) {
      const int64_t N = 9;
      const Tensor targets = random_indices(N, static_cast<int32_t>(V), 1);
      targets.data<int32_t>()[3] = -1;
      const Tensor count = Tensor::full({1}, N - 1, DType::f64);
      check_kernel("count_targets", {targets}, {{Shape{1}, DType::f32}},
                   [](const Inputs& in, const Outputs& out) {
                     kernels::count_targets(in[0], -1, out[0].tensor);
                   });
      check_kernel("cross_entropy", {random_tensor({N, V}, 2), targets, {count, true}},
                   {{Shape{N}, false},
                    {Shape{N, V}, false},
                    {Shape{N}, false},
                    {Shape{N}, false},
                    {Shape{N, V}, false}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::cross_entropy(in[0], in[1], in[2], -1, smoothing, out[0].tensor,
                                            out[1].tensor);
                     kernels::cross_entropy(in[0], in[1], in[2], -1, smoothing, out[2].tensor,
                                            none);
                     // In place: the gradient may take the logits' memory.
                     out[4].tensor.copy_from(in[0]);
                     kernels::cross_entropy(out[4].tensor, in[1], in[2], -1, smoothing,
                                            out[3].tensor, out[4].tensor);
                   });
    }
}

TEST_CASE("cuda_cross_entropy_takes_logits_of_minus_infinity") {
  for (const int64_t V : {5, 1030, 1040, 20000})
    for (const double smoothing : {0.0, 0.1}) {
      const Tensor logits = random_tensor({4, V}, 2);
      const Tensor targets = Tensor::from<int32_t>({0, static_cast<int32_t>(V - 1), 2, 3});
      for (int64_t n = 0; n < 4; ++n)
        for (int64_t v = 0; v < V; ++v) {
          // All but the first, all but the last, the first half, four of five.
          const bool finite[] = {v == 0, v == V - 1, v >= V / 2 || v == 2, v % 5 == 3};
          if (!finite[n]) logits.data<double>()[n * V + v] = -INFINITY;
        }
      check_kernel("cross_entropy", {logits, targets, {Tensor::full({1}, 4, DType::f64), true}},
                   {{Shape{4}, false}, {Shape{4, V}, false}},
                   [&](const Inputs& in, const Outputs& out) {
                     kernels::cross_entropy(in[0], in[1], in[2], -1, smoothing, out[0].tensor,
                                            out[1].tensor);
                   });
    }
}

TEST_CASE("cuda_cross_entropy_rounds_the_gradient_to_16_bits") {
  for (const int64_t V : {65, 1040, 9000}) {
    const Tensor logits = random_tensor({3, V}, 2, DType::f32).to(Device::cuda);
    const Tensor targets = random_indices(3, static_cast<int32_t>(V), 1).to(Device::cuda);
    const Tensor count = Tensor::full({1}, 3, DType::f32, Device::cuda);
    const Tensor loss = logits.empty_like({3}), slopes = logits.empty_like();
    kernels::cross_entropy(logits, targets, count, -1, 0.1, loss, slopes);
    const Tensor rounded = Tensor::empty({3, V}, DType::bf16, Device::cuda);
    const Tensor expected = rounded.empty_like();
    kernels::cross_entropy(logits, targets, count, -1, 0.1, loss, rounded);
    expected.copy_from(slopes);
    CHECK(rounded.to_vector<bf16>() == expected.to_vector<bf16>());
  }
}

TEST_CASE("cuda_cross_entropy_refuses_a_gradient_of_another_dtype_than_16_bit_logits") {
  const auto empty = [](const Shape& shape, DType dtype) {
    return Tensor::zeros(shape, dtype, Device::cuda);
  };
  CHECK_THROWS_WITH(kernels::cross_entropy(empty({3, 65}, DType::bf16), empty({3}, DType::i32),
                                           empty({1}, DType::f32), -1, 0, empty({3}, DType::f32),
                                           empty({3, 65}, DType::f32)),
                    ContainsSubstring("the gradient of bf16 logits has their dtype, got f32"));
}

TEST_CASE("cuda_cross_entropy_passes_nan_on") {
  for (const auto& [V, v] : {std::pair{1040, 0}, {1040, 3}, {1040, 1039}, {8200, 8199}}) {
    const Tensor logits = Tensor::zeros({1, V}, DType::f32);
    logits.data<float>()[v] = NAN;
    const Tensor there = logits.to(Device::cuda), dlogits = there.empty_like();
    const Tensor loss = there.empty_like({1});
    kernels::cross_entropy(there, Tensor::from<int32_t>({5}).to(Device::cuda),
                           Tensor::full({1}, 1, DType::f32, Device::cuda), -1, 0, loss, dlogits);
    CHECK(std::isnan(loss.item()));
    for (const float slope : dlogits.to_vector<float>()) CHECK(std::isnan(slope));
  }
}

namespace {

void check_optimizer_steps(int64_t n) {
  const Tensor factor = Tensor::full({1}, 0.5, DType::f64);
  const std::vector<Argument> arguments = {{random_tensor({n}, 1), true},
                                           {random_tensor({n}, 2), true},
                                           {factor, true},
                                           {random_tensor({n}, 3), true},
                                           {uniform_tensor({n}, 0, 1, 4), true}};
  const auto state = [](const Tensor& from, const Tensor& to) {
    to.copy_from(from);
    return to;
  };
  const Result f32(Shape{n}, DType::f32), rounded(Shape{n}, false);
  const kernels::AdamWStep step{1e-2, 0.9, 0.99, 1e-8, 0.1, 0.3, 0.05};
  check_kernel(
      "adamw", arguments, {f32, f32, f32, rounded}, [&](const Inputs& in, const Outputs& out) {
        kernels::adamw_step(state(in[0], out[0].tensor), in[1], in[2], state(in[3], out[1].tensor),
                            state(in[4], out[2].tensor), step, out[3].tensor);
      });
  for (const double momentum : {0.0, 0.9})
    check_kernel("sgd", arguments, {f32, f32, rounded}, [&](const Inputs& in, const Outputs& out) {
      const Tensor velocity = state(in[3], out[1].tensor);
      kernels::sgd_step(state(in[0], out[0].tensor), in[1], in[2],
                        momentum > 0 ? velocity : Tensor{}, 0.1, momentum, 0.01, out[2].tensor);
    });
}

}  // namespace

TEST_CASE("cuda_optimizer_steps") {
  check_optimizer_steps(1037);
  check_optimizer_steps(1040);  // 16 bytes at a time
}

TEST_CASE("cuda_optimizer_steps_change_nothing_where_the_factor_is_nan") {
  const kernels::AdamWStep step{1e-2, 0.9, 0.99, 1e-8, 0.1, 0.3, 0.05};
  for (const Device device : {Device::cpu, Device::cuda}) {
    INFO(device);
    const auto ones = [&] { return Tensor::full({37}, 1, DType::f32, device); };
    const Tensor p = ones(), m = ones(), v = ones(), nan = Tensor::full({1}, NAN).to(device);
    const Tensor rounded = Tensor::full({37}, 1, DType::bf16, device);
    kernels::adamw_step(p, ones(), nan, m, v, step, rounded);
    kernels::sgd_step(p, ones(), nan, m, 0.1, 0.9, 0.01, rounded);
    kernels::sgd_step(p, ones(), nan, Tensor{}, 0.1, 0, 0.01, rounded);
    for (const Tensor& x : {p, m, v}) CHECK(x.to_vector<float>() == std::vector<float>(37, 1));
    CHECK(rounded.to_vector<bf16>() == std::vector<bf16>(37, bf16(1)));
  }
}
