// What whoever adds something of their own leans on: gradient checks that name the culprit, the
// doctor's report, and what a checkpoint says of a norm that is missing.
#include <cmath>
#include <cstdio>

#include "layers/ffn.h"
#include "layers/gradcheck.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/lively_model.h"
#include "tests/random_tensor.h"
#include "train/diagnosis.h"

namespace tapeformer {
namespace {

using Inputs = std::vector<Tensor>;

// y = a b, whose backward is off by 0.25 in one element of one input, or adds nothing where it
// should add.
struct Fault {
  size_t input = 0;
  int64_t element = 0;
  bool overwrites = false;
};
Tensor product_with(const Fault& fault, const Tensor& a, const Tensor& b) {
  const Tensor y = a.empty_like();
  kernels::binary_forward(a, b, kernels::Binary::mul, y);
  record("faulty", {a, b}, {y}, [=](BackwardPass& pass) {
    for (const size_t i : {0, 1}) {
      if (!pass.needs(i)) continue;
      const Tensor d = pass.gradient() * (i == 0 ? b : a).detach();
      if (i == fault.input && !fault.overwrites) d.data<double>()[fault.element] += 0.25;
      if (i == fault.input && fault.overwrites)
        pass.destination(i).tensor.copy_from(d);
      else
        pass.pass_on(i, d);
    }
  });
  return y;
}

struct Told {
  size_t input = 99;
  long element = -1;
  double analytic = NAN, numeric = NAN;
};
Told told_by(const GradcheckResult& result) {
  Told told;
  const size_t at = result.message.find(": analytic");
  REQUIRE(at != std::string::npos);
  std::sscanf(result.message.c_str(), "input %zu, element %ld", &told.input, &told.element);
  std::sscanf(result.message.c_str() + at, ": analytic %lf, numeric %lf", &told.analytic,
              &told.numeric);
  return told;
}

// ---------------------------------------------------------------- gradcheck

TEST_CASE("gradcheck_names_the_input_and_element_that_a_backward_gets_wrong") {
  const Inputs inputs = {random_tensor({2, 3}, 1), random_tensor({2, 3}, 2)};
  for (const size_t input : {0, 1})
    for (const int64_t element : {0, 4}) {
      const GradcheckResult result = gradcheck(
          [&](const Inputs& in) {
            return product_with({input, element}, in[0], in[1]);
          },
          inputs);
      CAPTURE(result.message);
      CHECK(!result);
      CHECK(result.input == input);
      const Told told = told_by(result);
      CHECK(told.input == input);
      CHECK(told.element == element);
      CHECK(told.analytic - told.numeric == Approx(0.25).epsilon(1e-4));
    }
}

TEST_CASE("gradcheck_finds_a_backward_that_overwrites_what_it_should_add_to") {
  const Inputs inputs = {random_tensor({2, 3}, 1), random_tensor({2, 3}, 2)};
  const GradcheckResult result = gradcheck(
      [](const Inputs& in) { return product_with({.input = 1, .overwrites = true}, in[0], in[1]); },
      inputs);
  CHECK(!result);
  CHECK_THAT(result.message, ContainsSubstring("onto an existing gradient"));
  CHECK(told_by(result).input == 1);
}

// A product with a weight of its own.
struct Faulty : Module {
  Fault fault;
  Tensor gain = make_parameter({2, 3}, 1), weight = make_parameter({2, 3}, 1);
  explicit Faulty(Fault fault) : fault(fault) {}
  Tensor forward(const Tensor& x) const { return gain * product_with(fault, x, weight); }
  void visit(Visitor& visitor) override {
    visitor.parameter("gain", gain);
    visitor.parameter("weight", weight);
  }
};

TEST_CASE("gradcheck_of_a_module_names_the_parameter_that_is_wrong") {
  Faulty module({.input = 1, .element = 5});
  convert(module, DType::f64);
  const auto forward = [&](const Inputs& in) { return module.forward(in[0]); };
  const GradcheckResult result = gradcheck(module, forward, {random_tensor({2, 3}, 1)});
  CHECK(!result);
  CHECK_THAT(result.message, ContainsSubstring("parameter weight, element 5 ("));
  module.fault.input = 0;
  CHECK_THAT(gradcheck(module, forward, {random_tensor({2, 3}, 1)}).message,
             ContainsSubstring("input 0, element 5 ("));
  module.fault.input = 2;  // no input: nothing is wrong
  CHECK(gradcheck(module, forward, {random_tensor({2, 3}, 1)}));
}

TEST_CASE("gradcheck_leaves_a_module_as_it_was") {
  FeedForward ffn(3, 4, "gelu", true);
  initialize(ffn, 1, [](const std::string&) { return 1.0; });
  convert(ffn, DType::f64);
  {
    Tape tape;
    tape.backward(sum(ffn.forward(random_tensor({2, 3}, 2))));
  }
  const auto parameters = named_parameters(ffn);
  std::vector<Tensor> values, gradients;
  std::vector<void*> memory;
  for (const NamedTensor& p : parameters) {
    memory.push_back(p.tensor.raw());
    values.push_back(p.tensor.clone());
    gradients.push_back(gradient(p.tensor).clone());
  }
  CHECK(gradcheck(ffn, [&](const Inputs& in) { return ffn.forward(in[0]); },
                  {random_tensor({2, 3}, 1)}));
  for (size_t i = 0; i < parameters.size(); ++i) {
    CHECK(parameters[i].tensor.raw() == memory[i]);
    CHECK(same_bits(parameters[i].tensor.detach(), values[i]));
    CHECK(same_bits(gradient(parameters[i].tensor), gradients[i]));
  }
}

TEST_CASE("gradcheck_of_a_module_in_f32_names_the_cure") {
  FeedForward ffn(3, 4, "gelu", true);
  CHECK_THROWS_WITH(gradcheck(ffn, [&](const Inputs& in) { return ffn.forward(in[0]); },
                              {random_tensor({2, 3}, 1)}),
                    ContainsSubstring("up.weight") && ContainsSubstring("convert(module"));
}

// ---------------------------------------------------------------- the doctor

// The identity plus parameters of every kind of trouble.
struct TroubledNorm : Norm {
  Tensor used, unused = make_parameter({3}), zero;
  explicit TroubledNorm(int64_t channels)
      : used(make_parameter({channels}, 1)), zero(make_parameter({channels})) {}
  Tensor forward(const Tensor& x, const NormContext&) override { return used * x + 0.0 * zero; }
  void visit(Visitor& visitor) override {
    visitor.parameter("used", used);
    visitor.parameter("unused", unused);
    visitor.parameter("zero", zero);
  }
};

const ParameterHealth& health_of(const std::vector<ParameterHealth>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &ParameterHealth::name);
  REQUIRE(found != all.end());
  return *found;
}

// The line of the table about a parameter.
std::string row_of(const HealthReport& report, const std::string& name) {
  const size_t begin = report.table.find("\n" + name + " ");
  REQUIRE(begin != std::string::npos);
  return report.table.substr(begin + 1, report.table.find('\n', begin + 1) - begin - 1);
}

TEST_CASE("the_doctor_fails_where_no_backward_wrote_a_parameter_and_lists_all_zero_gradients") {
  register_norm("troubled",
                [](int64_t channels) { return std::make_unique<TroubledNorm>(channels); });
  const Stories stories;
  GPT model(stories.config("troubled"));
  const auto health = examine(model, *stories.corpus);
  CHECK(!health_of(health, "blocks.0.norm1.unused").reached);
  CHECK(health_of(health, "blocks.0.norm1.zero").reached);
  CHECK(health_of(health, "blocks.0.norm1.zero").gradient_norm == 0);
  const HealthReport report = health_report(health);
  CHECK(!report.healthy);
  CHECK_THAT(row_of(report, "blocks.1.norm2.unused"), ContainsSubstring("[3]") &&
                                                          ContainsSubstring(" no  ") &&
                                                          ContainsSubstring("NOT REACHED"));
  CHECK_THAT(row_of(report, "blocks.1.norm2.used"),
             ContainsSubstring("[8]") && ContainsSubstring(" yes ") && ContainsSubstring("ok"));
  CHECK_THAT(report.table, ContainsSubstring("\nNOT REACHED by any backward (unused, or cut off by "
                                             "detach()): blocks.0.norm1.unused, "));
  CHECK_THAT(report.table, ContainsSubstring("\ngradient all zero at the last step: "
                                             "blocks.0.norm1.zero, "));
}

TEST_CASE("an_all_zero_gradient_is_listed_but_no_failure") {
  const HealthReport report = health_report(
      {{.name = "a.weight", .shape = {2, 3}, .reached = true, .gradient_norm = 0, .update_norm = 0},
       {.name = "b.weight",
        .shape = {2},
        .reached = true,
        .gradient_norm = 0.5,
        .update_norm = 0.25}});
  CHECK(report.healthy);
  CHECK_THAT(report.table, ContainsSubstring("gradient all zero at the last step: a.weight\n"));
  CHECK_THAT(row_of(report, "b.weight"),
             ContainsSubstring("0.5") && ContainsSubstring("0.25") && ContainsSubstring("yes"));
}

TEST_CASE("a_parameter_with_a_gradient_that_does_not_move_or_is_not_finite_is_a_failure") {
  const auto report_of = [](double gradient_norm, double update_norm) {
    return health_report({{.name = std::string(60, 'w'),
                           .shape = {2},
                           .reached = true,
                           .gradient_norm = gradient_norm,
                           .update_norm = update_norm}});
  };
  CHECK(report_of(0.5, 0.5).healthy);
  CHECK(!report_of(0.5, 0).healthy);
  CHECK_THAT(report_of(0.5, 0).table, ContainsSubstring("\nDID NOT MOVE: www"));
  CHECK(!report_of(NAN, 0.5).healthy);  // it moved in an earlier step
  CHECK_THAT(report_of(NAN, 0.5).table, ContainsSubstring("gradient NOT FINITE"));
}

TEST_CASE("the_doctor_examines_any_module_by_its_loss") {
  Faulty module({.input = 2});
  const auto health = examine(module, [&](int64_t step) {
    return sum(module.forward(random_tensor({2, 3}, 1 + step, DType::f32)));
  });
  REQUIRE(health.size() == 2);
  CHECK(health_report(health).healthy);
  const auto half = examine(module, [&](int64_t) { return sum(module.gain * module.gain); });
  CHECK(half[0].reached);
  CHECK(!half[1].reached);
  CHECK(!health_report(half).healthy);
}

}  // namespace
}  // namespace tapeformer
