// Flat parameters, optimizers and schedules, against arithmetic written out.
#include <cmath>

#include "autograd/ops.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/random_tensor.h"

namespace tapeformer {
namespace {

Tensor parameter(const Shape& shape, double value, DType dtype) {
  return requires_gradient(Tensor::full(shape, value, dtype));
}

// A bias before a matrix, so that the flat order is not the order of the visit.
struct Model : Module {
  Tensor bias, weight;
  explicit Model(DType dtype = DType::f64)
      : bias(parameter({3}, 0.5, dtype)), weight(parameter({2, 5}, -2, dtype)) {}
  void visit(Visitor& visitor) override {
    visitor.parameter("bias", bias);
    visitor.parameter("weight", weight);
    visitor.buffer("count", Tensor::zeros({1}));
  }
};

struct Single : Module {
  Tensor tensor;
  explicit Single(Tensor tensor) : tensor(std::move(tensor)) {}
  void visit(Visitor& visitor) override { visitor.parameter("tensor", tensor); }
};

// Gives a parameter the gradient `value` in every element, on top of what it has.
void add_gradient(const Tensor& parameter, double value) {
  Tape tape;
  tape.backward(sum(affine(parameter, value, 0)));
}

std::vector<double> filled(int64_t n, double value) { return std::vector<double>(n, value); }

TEST_CASE("parameters_lie_in_one_buffer_that_every_handle_reaches") {
  Model model;
  const Tensor other_handle = model.weight;
  Parameters parameters(model);
  REQUIRE(parameters.entries().size() == 2);
  CHECK(parameters.entries()[0].name == "weight");  // decays, so it comes first
  CHECK(parameters.entries()[1].name == "bias");
  const int64_t begin = parameters.entries()[1].offset;
  CHECK(begin % 8 == 0);
  CHECK(parameters.decaying() == begin);
  CHECK(values_of(parameters.values().rows(0, 10)) == filled(10, -2));
  CHECK(values_of(parameters.values().rows(begin, begin + 3)) == filled(3, 0.5));

  parameters.values().fill(7);
  CHECK(values_of(other_handle) == filled(10, 7));
  CHECK(values_of(model.bias) == filled(3, 7));

  add_gradient(other_handle, 3);
  CHECK(values_of(parameters.gradients().rows(0, 10)) == filled(10, 3));
  CHECK(gradient(model.weight).raw() == parameters.gradients().raw());
}

TEST_CASE("padding_between_parameters_is_and_stays_zero") {
  Model model;
  Parameters parameters(model);
  AdamW adamw(parameters, {.weight_decay = 0.5});
  for (int step = 0; step < 3; ++step) {
    parameters.zero_gradients();
    add_gradient(model.weight, 2);
    add_gradient(model.bias, 2);
    CHECK(adamw.step(0.1) == Approx(std::sqrt(13 * 4.0)));
  }
  for (const Tensor& flat : {parameters.values(), parameters.gradients()}) {
    std::vector<double> rest = values_of(flat);
    for (const auto& [name, tensor, offset] : parameters.entries())
      std::fill_n(rest.begin() + offset, tensor.numel(), 0);
    CHECK(rest == filled(static_cast<int64_t>(rest.size()), 0));
  }
}

TEST_CASE("gradients_add_up_until_they_are_zeroed_and_read_as_zero_where_nothing_came") {
  Model model;
  Parameters parameters(model);
  const int64_t bias = parameters.entries()[1].offset;
  add_gradient(model.weight, 2);
  add_gradient(model.weight, 3);
  CHECK(values_of(parameters.gradients().rows(0, 10)) == filled(10, 5));
  CHECK(values_of(parameters.gradients().rows(bias, bias + 3)) == filled(3, 0));
  add_gradient(model.bias, 4);  // after its zero was read
  CHECK(values_of(parameters.gradients().rows(bias, bias + 3)) == filled(3, 4));
  parameters.zero_gradients();
  CHECK_FALSE(gradient(model.weight).defined());
  add_gradient(model.bias, 1);
  CHECK(values_of(parameters.gradients().rows(0, 10)) == filled(10, 0));
  CHECK(values_of(parameters.gradients().rows(bias, bias + 3)) == filled(3, 1));
}

TEST_CASE("a_gradient_from_before_the_move_is_kept") {
  Model model;
  add_gradient(model.weight, 2);
  Parameters parameters(model);
  add_gradient(model.weight, 3);
  CHECK(values_of(parameters.gradients().rows(0, 10)) == filled(10, 5));
}

TEST_CASE("large_parameters_are_never_held_twice") {
  struct Large : Module {
    std::vector<Tensor> layers;
    void visit(Visitor& visitor) override {
      for (size_t i = 0; i < layers.size(); ++i) visitor.parameter(std::to_string(i), layers[i]);
    }
  } model;
  for (int i = 0; i < 8; ++i) model.layers.push_back(make_parameter({1024, 512}));  // 2 MB each
  const size_t before = memory_stats().live_bytes, reserved = memory_stats().reserved_bytes;
  reset_peak_memory();
  Parameters parameters(model);
  const size_t model_bytes = size_t{16} << 20;
  CHECK(memory_stats().live_bytes == before + model_bytes);  // the gradients
  CHECK(memory_stats().peak_bytes == before + 2 * model_bytes);
  CHECK(memory_stats().reserved_bytes <= reserved + model_bytes);
}

TEST_CASE("parameters_say_what_is_wrong_with_the_model") {
  struct Two : Module {
    Tensor a, b;
    Two(Tensor a, Tensor b) : a(std::move(a)), b(std::move(b)) {}
    void visit(Visitor& visitor) override {
      visitor.parameter("a", a);
      visitor.parameter("b", b);
    }
  };
  const Tensor tensor = make_parameter({2});
  Two tied(tensor, tensor), mixed(tensor, parameter({2}, 0, DType::f64)), none({}, {});
  CHECK_THROWS_WITH(Parameters(tied),
                    ContainsSubstring("parameters: a and b are one tensor; visit() must report"));
  CHECK_THROWS_WITH(Parameters(mixed), "parameters: dtypes differ: a is f32, b is f64");
  CHECK_THROWS_WITH(Parameters(none), ContainsSubstring("parameters: the model has none"));
  Single integers(Tensor::zeros({2}, DType::i32));
  CHECK_THROWS_WITH(Parameters(integers), ContainsSubstring("parameters: tensor is i32"));

  Model model;
  Parameters first(model), second(model);
  CHECK_THROWS_WITH(first.gradients(), ContainsSubstring("has moved to other memory"));
  CHECK_NOTHROW(second.gradients());
}

// p, m and v after one step of AdamW, as the paper has it.
struct Reference {
  double p, m = 0, v = 0;
  void step(double g, int t, double lr, double decay) {
    m = 0.9 * m + 0.1 * g;
    v = 0.99 * v + 0.01 * g * g;
    const double m_hat = m / (1 - std::pow(0.9, t)), v_hat = v / (1 - std::pow(0.99, t));
    p -= lr * (m_hat / (std::sqrt(v_hat) + 1e-3) + decay * p);
  }
};

TEST_CASE("adamw_follows_the_paper_and_decays_only_matrices") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double bound = dtype == DType::f32 ? 3e-7 : 1e-14;
    Model model(dtype);
    Parameters parameters(model);
    AdamW adamw(parameters, {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.2});
    Reference weight{-2}, bias{0.5};
    const double gradients[][2] = {{0.3, -4}, {-1, 0.002}};
    for (int t = 1; t <= 2; ++t) {
      const auto [g_weight, g_bias] = gradients[t - 1];
      parameters.zero_gradients();
      add_gradient(model.weight, g_weight);
      add_gradient(model.bias, g_bias);
      const double norm = adamw.step(0.01 * t);
      CHECK(norm == Approx(std::sqrt(10 * g_weight * g_weight + 3 * g_bias * g_bias)));
      weight.step(g_weight, t, 0.01 * t, 0.2);
      bias.step(g_bias, t, 0.01 * t, 0);
      CHECK(adamw.steps() == t);
      CHECK(largest_error(model.weight, filled(10, weight.p)) < bound);
      CHECK(largest_error(model.bias, filled(3, bias.p)) < bound);
    }
    std::vector<std::string> names;
    adamw.visit_state([&](const std::string& name, const Tensor& tensor) {
      names.push_back(name);
      const Reference& reference = name.ends_with("weight") ? weight : bias;
      const double expected = name[0] == 'm' ? reference.m : reference.v;
      CHECK(largest_error(tensor, filled(tensor.numel(), expected)) < bound);
      CHECK(tensor.shape() == (name.ends_with("weight") ? Shape{2, 5} : Shape{3}));
    });
    CHECK(names == std::vector<std::string>{"m.weight", "m.bias", "v.weight", "v.bias"});
  }
}

TEST_CASE("adamw_resumes_from_its_state") {
  Model model, copy;
  Parameters parameters(model), copied(copy);
  AdamW adamw(parameters), resumed(copied);
  const auto step = [](Model& model, Parameters& parameters, AdamW& optimizer, double g) {
    parameters.zero_gradients();
    add_gradient(model.weight, g);
    optimizer.step(0.1, 1);
  };
  step(model, parameters, adamw, 3);
  copied.values().copy_from(parameters.values());
  std::vector<Tensor> state;
  adamw.visit_state([&](const std::string&, const Tensor& tensor) { state.push_back(tensor); });
  size_t next = 0;
  resumed.visit_state(
      [&](const std::string&, const Tensor& tensor) { tensor.copy_from(state[next++]); });
  resumed.set_steps(adamw.steps());
  step(model, parameters, adamw, -1);
  step(copy, copied, resumed, -1);
  CHECK(same_bits(parameters.values(), copied.values()));
}

TEST_CASE("clipping_scales_the_gradient_to_the_norm_and_leaves_smaller_ones_alone") {
  for (const double max_norm : {0.0, 2.0, 100.0}) {
    Model model;
    Parameters parameters(model);
    SGD sgd(parameters);
    add_gradient(model.weight, 3);
    add_gradient(model.bias, -4);
    const double norm = std::sqrt(10 * 9.0 + 3 * 16.0);
    CHECK(sgd.step(0.1, max_norm) == Approx(norm).epsilon(1e-14));
    const double factor = max_norm == 2 ? 2 / (norm + 1e-6) : 1;
    CHECK(largest_error(model.weight, filled(10, -2 - 0.1 * 3 * factor)) < 1e-14);
    CHECK(largest_error(model.bias, filled(3, 0.5 + 0.1 * 4 * factor)) < 1e-14);
    CHECK(values_of(gradient(model.bias)) == filled(3, -4));  // the gradients stay as they are
  }
}

TEST_CASE("what_no_backward_reached_moves_by_its_decay_only") {
  Model model;
  Parameters parameters(model);
  SGD sgd(parameters, {.weight_decay = 0.5});
  CHECK(sgd.step(0.1) == 0);
  CHECK(largest_error(model.weight, filled(10, -2 + 0.1 * 0.5 * 2)) < 1e-15);
  CHECK(values_of(model.bias) == filled(3, 0.5));
}

TEST_CASE("sgd_gathers_momentum") {
  Model model;
  Parameters parameters(model);
  SGD sgd(parameters, {.momentum = 0.9, .weight_decay = 0.1});
  double weight = -2, velocity = 0, bias = 0.5, bias_velocity = 0;
  for (const double g : {3.0, -1.0, 0.5}) {
    parameters.zero_gradients();
    add_gradient(model.weight, g);
    add_gradient(model.bias, g);
    sgd.step(0.1);
    velocity = 0.9 * velocity + g + 0.1 * weight;
    weight -= 0.1 * velocity;
    bias_velocity = 0.9 * bias_velocity + g;
    bias -= 0.1 * bias_velocity;
    CHECK(largest_error(model.weight, filled(10, weight)) < 1e-14);
    CHECK(largest_error(model.bias, filled(3, bias)) < 1e-14);
  }
  int views = 0;
  sgd.visit_state([&](const std::string& name, const Tensor& tensor) {
    ++views;
    if (name == "velocity.weight") CHECK(largest_error(tensor, filled(10, velocity)) < 1e-14);
  });
  CHECK(views == 2);
}

TEST_CASE("optimizer_steps_give_the_same_bits_on_any_number_of_threads") {
  const Tensor start = random_tensor({211, 307}, 1, DType::f32);
  const Tensor direction = random_tensor({211, 307}, 2, DType::f32);
  CHECK(threads_do_not_matter([&] {
    std::vector<Tensor> results;
    for (const bool adaptive : {true, false}) {
      Single model(start.clone());
      Parameters parameters(model);
      AdamW adamw(parameters);
      SGD sgd(parameters, {.momentum = 0.9});
      Optimizer& optimizer = adaptive ? static_cast<Optimizer&>(adamw) : sgd;
      for (int step = 0; step < 2; ++step) {
        Tape tape;
        tape.backward(sum(model.tensor * direction));
        optimizer.step(0.01, 1);
      }
      results.push_back(model.tensor.detach());
    }
    return results;
  }));
}

TEST_CASE("optimizers_refuse_numbers_without_sense") {
  Model model;
  Parameters parameters(model);
  CHECK_THROWS_WITH(AdamW(parameters, {.beta1 = 1}), "optimizer: beta1 must lie in [0, 1), got 1");
  CHECK_THROWS_WITH(SGD(parameters, {.momentum = -0.1}),
                    "optimizer: momentum must lie in [0, 1), got -0.1");
  SGD sgd(parameters);
  CHECK_THROWS_WITH(sgd.step(-1), "optimizer: the learning rate must be at least 0, got -1");
  CHECK_THROWS_WITH(sgd.step(std::nan("")), ContainsSubstring("must be at least 0"));
  CHECK_THROWS_WITH(sgd.step(1, -1), ContainsSubstring("optimizer: max_norm must be at least 0"));
  CHECK(sgd.steps() == 0);
}

double rate(const std::string& name, int64_t step, int64_t warmup = 4, int64_t steps = 24) {
  return learning_rate({.name = name, .lr = 1, .min_lr = 0.1, .warmup = warmup, .steps = steps},
                       step);
}

TEST_CASE("warm_up_rises_in_a_line_from_above_zero_to_the_peak") {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    for (int64_t step = 0; step < 4; ++step) CHECK(rate(name, step) == Approx((step + 1) / 4.0));
    CHECK(rate(name, 4) == 1);
    CHECK(rate(name, 0, 0) == 1);  // no warm-up
    for (int64_t step = 0; step < 6; ++step)
      CHECK(rate(name, step, 8, 6) == Approx((step + 1) / 8.0));  // nothing but warm-up
  }
}

TEST_CASE("schedules_follow_their_formulas_to_the_horizon_and_stay_there") {
  CHECK(rate("constant", 24) == 1);
  CHECK(rate("constant", 1000) == 1);
  CHECK(rate("linear", 9) == Approx(0.1 + 0.9 * 0.75));
  CHECK(rate("linear", 14) == Approx(0.1 + 0.9 * 0.5));
  CHECK(rate("cosine", 9) == Approx(0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2));
  CHECK(rate("cosine", 14) == Approx(0.1 + 0.9 * 0.5));
  CHECK(rate("wsd", 19) == 1);
  CHECK(rate("wsd", 20) == Approx(1));
  CHECK(rate("wsd", 22) == Approx(0.1 + 0.9 * 0.5));
  for (const char* name : {"linear", "cosine", "wsd"}) {
    CHECK(rate(name, 24) == Approx(0.1).epsilon(1e-15));
    CHECK(rate(name, 1000) == Approx(0.1).epsilon(1e-15));
  }
}

TEST_CASE("invsqrt_is_the_papers_rate_scaled_to_its_peak") {
  for (const int64_t step : {0, 2, 3, 4, 15, 99}) {
    const double t = static_cast<double>(step) + 1;  // the paper counts from 1
    const double paper = std::min(1 / std::sqrt(t), t * std::pow(4, -1.5));
    CHECK(rate("invsqrt", step) == Approx(paper / std::pow(4, -0.5)));
  }
  CHECK(rate("invsqrt", 3) == Approx(1));
  CHECK(rate("invsqrt", 3, 0) == Approx(0.5));  // without warm-up, from the peak at once
}

TEST_CASE("schedules_make_no_jumps") {
  for (const std::string& name : schedule_names())
    for (const int64_t warmup : {0, 1, 100, 900})
      for (int64_t step = 0; step < 1100; ++step) {
        const double difference =
            rate(name, step + 1, warmup, 1000) - rate(name, step, warmup, 1000);
        // Steepest are the warm-up, wsd's decay over a fifth of the rest, and the first step of
        // invsqrt without warm-up, from 1 to 1 / sqrt 2.
        const double rise = warmup > 1 ? 1.0 / warmup : name == "invsqrt" ? 1 - std::sqrt(0.5) : 0;
        const double steepest = std::max(rise, 5.0 / (1000 - warmup));
        if (std::abs(difference) > steepest * (1 + 1e-9))
          FAIL_CHECK(name << " with warm-up " << warmup << " jumps after step " << step);
      }
}

TEST_CASE("a_run_of_one_step_has_a_rate") {
  for (const std::string& name : schedule_names())
    for (const int64_t warmup : {0, 1}) CHECK(rate(name, 0, warmup, 1) == 1);
}

TEST_CASE("schedules_refuse_unknown_names_and_negative_numbers") {
  CHECK_THROWS_WITH(rate("cosin", 0),
                    "schedule: there is no \"cosin\"; known are [constant, linear, cosine, "
                    "invsqrt, wsd]");
  CHECK_THROWS_WITH(rate("cosine", -1), ContainsSubstring("numbers must not be negative"));
  CHECK_THROWS_WITH(rate("cosine", 0, -1), ContainsSubstring("warmup -1"));
}

}  // namespace
}  // namespace tapeformer
