// The tape: what it records, how gradients flow, add up and share memory, and what it refuses.
#include "autograd/tape.h"

#include <memory>
#include <thread>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

Tensor leaf(const std::vector<double>& values) { return requires_gradient(Tensor::from(values)); }

std::vector<double> gradient_values(const Tensor& x) { return gradient(x).to_vector<double>(); }

}  // namespace

TEST_CASE("nothing_is_recorded_without_a_tape") {
  const Tensor x = leaf({1, 2});
  const Tensor y = sum(x * x);
  CHECK(!needs_gradient(y));
  Tape tape;
  CHECK_THROWS_WITH(tape.backward(y), ContainsSubstring("no operation on this tape made"));
}

TEST_CASE("a_tape_is_consumed_by_its_backward") {
  const Tensor x = leaf({1, 2});
  Tape tape;
  const Tensor y = sum(x * x);
  tape.backward(y);
  CHECK(tape.size() == 0);
  CHECK_THROWS_WITH(tape.backward(y), ContainsSubstring("consumed"));
  CHECK_THROWS_WITH(x * x, ContainsSubstring("make a new Tape"));
}

TEST_CASE("gradients_add_up_until_zero_gradient_and_then_are_overwritten") {
  const Tensor x = leaf({1, 2});
  const auto backward = [&] {
    Tape tape;
    tape.backward(sum(x * x));
  };
  CHECK(!gradient(x).defined());
  backward();
  CHECK(gradient_values(x) == std::vector<double>{2, 4});
  backward();
  CHECK(gradient_values(x) == std::vector<double>{4, 8});
  zero_gradient(x);
  CHECK(!gradient(x).defined());
  backward();
  CHECK(gradient_values(x) == std::vector<double>{2, 4});
}

TEST_CASE("shared_gradient_is_not_overwritten") {
  // The gradient of the sum reaches x, the square's output and z in one buffer; what is then added
  // for x must not be seen by the others.
  const Tensor x = leaf({1, 2}), z = leaf({5, 6});
  Tape tape;
  const Tensor y = x + x * x;
  tape.backward(sum((y + z) * 3.0 + y));
  CHECK(gradient_values(x) == std::vector<double>{4 * 3, 4 * 5});
  CHECK(gradient_values(z) == std::vector<double>{3, 3});
}

TEST_CASE("a_gradient_given_to_backward_from_is_left_alone") {
  const Tensor x = leaf({1, 2}), seed = Tensor::from<double>({1, 10});
  Tape tape;
  const Tensor y = x + 0.0;
  const Tensor z = y + y;
  tape.backward_from({{z}}, {{seed}});
  CHECK(gradient_values(x) == std::vector<double>{2, 20});
  CHECK(seed.to_vector<double>() == std::vector<double>{1, 10});
}

TEST_CASE("backward_scales_the_loss") {
  const Tensor x = leaf({3});
  Tape tape;
  tape.backward(sum(x * x), 0.5);
  CHECK(gradient_values(x) == std::vector<double>{3});
}

TEST_CASE("an_input_of_another_tape_is_refused_and_its_gradient_not_lost") {
  const Tensor x = leaf({1});
  Tape outer;
  const Tensor y = x * x;
  Tape inner;
  CHECK_THROWS_WITH(y * 2.0, ContainsSubstring("recorded by another tape"));
  CHECK_NOTHROW(y.detach() * 2.0);
}

TEST_CASE("tapes_nest_and_pause_suspends_them") {
  const Tensor x = leaf({1});
  Tape outer;
  {
    Tape inner;
    const Tensor y = x * 2.0;
    CHECK(inner.size() == 1);
    CHECK(outer.size() == 0);
  }
  {
    const Pause pause;
    const Tensor y = x * 2.0;
    CHECK(!needs_gradient(y));
  }
  const Tensor y = x * 2.0;
  CHECK(outer.size() == 1);
}

TEST_CASE("a_tape_may_be_replaced_by_a_new_one") {
  const Tensor x = leaf({3});
  std::unique_ptr<Tape> tape;
  for (int round = 0; round < 3; ++round) {
    tape = std::make_unique<Tape>();  // the new one is made before the old one goes
    zero_gradient(x);
    tape->backward(sum(x * x));
    CHECK(gradient_values(x) == std::vector<double>{6});
  }
  tape.reset();
  CHECK(Tape::current() == nullptr);
}

TEST_CASE("seeds_are_checked_before_any_of_them_counts") {
  const Tensor x = leaf({1, 2});
  Tape tape;
  const Tensor y = x * x, wrong = Tensor::from<float>({1, 1});
  CHECK_THROWS_WITH(tape.backward_from({{y, y}}, {{y.detach(), wrong}}), ContainsSubstring("f32"));
  tape.backward(sum(y));
  CHECK(gradient_values(x) == std::vector<double>{2, 4});
}

TEST_CASE("live_memory_returns_to_the_baseline_after_backward") {
  const Tensor x = requires_gradient(Tensor::zeros({64, 64}));
  const auto backward = [&] {
    Tape tape;
    tape.backward(mean(tanh(matmul(x, x)) * 2.0));
  };
  backward();
  const size_t before = memory_stats().live_bytes;
  backward();
  CHECK(memory_stats().live_bytes == before);
  {
    Tape tape;
    const Tensor y = exp(matmul(x, x));
  }
  CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("a_chain_of_100000_operations_needs_no_recursion") {
  const Tensor x = leaf({1});
  {
    Tape tape;
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = y + x;
    tape.backward(sum(y));
    CHECK(gradient_values(x) == std::vector<double>{100001});
  }
  Tape tape;
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = tanh(y);  // freed without a backward
}

TEST_CASE("integer_tensors_and_recorded_outputs_are_no_leaves") {
  CHECK_THROWS_WITH(requires_gradient(Tensor::from<int32_t>({1})), ContainsSubstring("floating"));
  const Tensor x = leaf({1});
  Tape tape;
  const Tensor y = x * x;
  CHECK_THROWS_WITH(requires_gradient(y), ContainsSubstring("detach"));
  CHECK_THROWS_WITH(gradient(y), ContainsSubstring("leaf"));
}

TEST_CASE("recompute_equals_plain_bit_for_bit_dropout_included") {
  const Tensor x = requires_gradient(random_tensor({5, 7}, 1));
  const Tensor w = requires_gradient(random_tensor({7, 7}, 2));
  const auto f = [&](const Tensor& h) { return dropout(tanh(matmul(h, w)), 0.3) + h; };
  const auto run = [&](bool again) {
    zero_gradient(x);
    zero_gradient(w);
    const RandomScope random({3, Purpose::dropout, 0, 0});
    Tape tape;
    const Tensor first = again ? recompute(f, x) : f(x);
    const Tensor second = again ? recompute(f, first) : f(first);
    tape.backward(sum(second * second));
    auto values = second.to_vector<double>();
    for (const Tensor& leaf : {x, w})
      for (double g : gradient_values(leaf)) values.push_back(g);
    return values;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("recompute_reaches_parameters_when_its_input_needs_no_gradient") {
  const Tensor x = Tensor::from<double>({2, 3}), w = leaf({5, 7});
  Tape tape;
  tape.backward(sum(recompute([&](const Tensor& h) { return h * w; }, x)));
  CHECK(gradient_values(w) == std::vector<double>{2, 3});
}

TEST_CASE("recompute_returns_inputs_and_parameters_with_their_gradients") {
  const Tensor x = leaf({2}), w = leaf({5});
  Tape tape;
  const auto out = recompute(
      [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0], w, in[0] * w};
      },
      {x});
  tape.backward(sum(out[0] + 10.0 * out[1] + out[2]));
  CHECK(gradient_values(x) == std::vector<double>{1 + 5});
  CHECK(gradient_values(w) == std::vector<double>{10 + 2});
}

TEST_CASE("nested_recompute_of_a_constant_reaches_the_parameters_within") {
  const Tensor x = Tensor::from<double>({2, 3}), w = leaf({5, 7});
  Tape tape;
  const auto inner = [&](const Tensor& h) { return h * w; };
  tape.backward(sum(recompute([&](const Tensor& h) { return recompute(inner, h) * 2.0; }, x)));
  CHECK(gradient_values(w) == std::vector<double>{4, 6});
}

TEST_CASE("recompute_refuses_tensors_that_bypass_its_inputs") {
  const Tensor x = leaf({2});
  Tape tape;
  const Tensor y = x * x;
  CHECK_THROWS_WITH(recompute([&](const Tensor& h) { return h * y; }, x),
                    ContainsSubstring("recorded by another tape"));
}

TEST_CASE("recomputing_is_true_in_the_second_run_only") {
  const Tensor x = leaf({2});
  std::vector<bool> seen;
  Tape tape;
  const Tensor y = recompute(
      [&](const Tensor& h) {
        seen.push_back(recomputing());
        return h * 2.0;
      },
      x);
  tape.backward(sum(y));
  CHECK(seen == std::vector<bool>{false, true});
  CHECK(!recomputing());
}

TEST_CASE("gradcheck_finds_a_wrong_backward_and_says_where") {
  const auto wrong_square = [](const std::vector<Tensor>& in) {
    const Tensor x = in[0], y = x.empty_like();
    kernels::binary_forward(x, x, kernels::Binary::mul, y);
    record("wrong_square", {x}, {y}, [x](BackwardPass& pass) {
      pass.pass_on_scaled(0, mul(pass.gradient(), x.detach()), 2.001);
    });
    return y;
  };
  const GradcheckResult result = gradcheck(wrong_square, {random_tensor({3}, 4)});
  CHECK(!result);
  CHECK_THAT(result.message, ContainsSubstring("input 0, element"));
  CHECK_THAT(result.message, ContainsSubstring("analytic"));
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return in[0] * in[0]; },
                  {random_tensor({3}, 4)}));
}

TEST_CASE("dropout_without_a_random_scope_says_how_to_make_one") {
  CHECK_THROWS_WITH(dropout(Tensor::zeros({4}), 0.5), ContainsSubstring("RandomScope random("));
}

TEST_CASE("two_threads_with_a_tape_each_do_not_disturb_each_other") {
  const auto train = [](double start, std::vector<double>& losses) {
    const Tensor x = requires_gradient(Tensor::from<double>({start, -start}));
    for (int step = 0; step < 200; ++step) {
      zero_gradient(x);
      Tape tape;
      const Tensor loss = sum((x - 1.0) * (x - 1.0));
      losses.push_back(loss.item());
      tape.backward(loss);
      for (int i = 0; i < 2; ++i) x.data<double>()[i] -= 0.01 * gradient(x).data<double>()[i];
    }
  };
  std::vector<double> alone, first, second;
  train(3, alone);
  std::thread a([&] { train(3, first); }), b([&] { train(5, second); });
  a.join();
  b.join();
  CHECK(first == alone);
  CHECK(second != alone);
}
