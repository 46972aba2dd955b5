// PowerNorm against its recurrences, and what its buffers promise whatever runs around a step.
#include <cmath>

#include "autograd/gradcheck.h"
#include "layers/batch_norms.h"
#include "tests/catch.h"
#include "tests/norms.h"

namespace tapeformer {
namespace {

using Values = std::vector<double>;
constexpr int64_t B = 3, T = 4, C = 5;
const Shape shape{B, T, C};

std::unique_ptr<PowerNorm> power_norm(int64_t warm_up) {
  auto norm = random_norm("powernorm", C);
  static_cast<PowerNorm&>(*norm).warm_up = warm_up;
  return std::unique_ptr<PowerNorm>(static_cast<PowerNorm*>(norm.release()));
}

/// The formulas of Shen et al. 2020 in plain loops.
struct Reference {
  Values weight, bias, phi = Values(C, 1), e = Values(C, 0);
  int64_t warm_up, t = 0;
  Values y = {}, dx = {}, dweight = {}, dbias = {};

  void step(const Values& x, const Values& dy, const std::vector<int32_t>& lengths) {
    const auto real = [&](int64_t row) { return row % T < lengths[row / T]; };
    double n = 0;
    for (int64_t row = 0; row < B * T; ++row) n += real(row);
    y = dx = Values(x.size());
    dweight = dbias = Values(C, 0);
    ++t;
    for (int64_t c = 0; c < C; ++c) {
      const auto at = [c](int64_t row) { return row * C + c; };
      double v = 0;
      for (int64_t row = 0; row < B * T; ++row) v += real(row) ? x[at(row)] * x[at(row)] / n : 0;
      const bool exact = t <= warm_up;
      const double r = 1 / std::sqrt(v + 1e-5);
      const double divisor = std::sqrt((exact ? v : phi[c]) + 1e-5);
      double gz = 0, az = 0;
      for (int64_t row = 0; row < B * T; ++row)
        gz += weight[c] * dy[at(row)] * x[at(row)] / divisor / n;
      for (int64_t row = 0; row < B * T; ++row) {
        const int64_t i = at(row);
        const double z = x[i] / divisor, g = weight[c] * dy[i];
        const double a = g - (real(row) ? (exact ? gz : (1 - 0.9) * e[c]) * z : 0);
        y[i] = weight[c] * z + bias[c];
        dx[i] = a * r;
        az += real(row) ? a * z / n : 0;
        dweight[c] += dy[i] * z;
        dbias[c] += dy[i];
      }
      if (!exact) e[c] += az;
      if (exact) phi[c] = phi[c] * (t - 1) / t + v / t;
      phi[c] = 0.9 * phi[c] + 0.1 * v;
    }
  }
};

TEST_CASE("power_norm_follows_its_recurrences_through_the_end_of_the_warm_up") {
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{T, T, T}, {4, 1, 3}}) {
    const auto norm = power_norm(2);
    const auto parameters = named_parameters(*norm);
    Reference reference{.weight = values_of(parameters[0].tensor),
                        .bias = values_of(parameters[1].tensor),
                        .warm_up = 2};
    for (uint64_t step = 1; step <= 6; ++step) {
      INFO("step " << step);
      const Tensor x = random_tensor(shape, step), dy = random_tensor(shape, 10 + step);
      const NormPass pass = pass_of(*norm, x, dy, training_context(lengths_of(lengths)));
      reference.step(values_of(x), values_of(dy), lengths);
      CHECK(largest_error(pass.y, reference.y) < 1e-12);
      CHECK(largest_error(pass.dx, reference.dx) < 1e-12);
      CHECK(largest_error(pass.gradients[0], reference.dweight) < 1e-12);
      CHECK(largest_error(pass.gradients[1], reference.dbias) < 1e-12);
      CHECK(largest_error(norm->running_variance, reference.phi) < 1e-12);
      CHECK(largest_error(norm->e, reference.e) < 1e-12);
      CHECK(norm->step.item() == static_cast<double>(step));
      Values evaluated;  // x / sqrt(phi + epsilon)
      for (int64_t i = 0; i < B * T * C; ++i)
        evaluated.push_back(reference.weight[i % C] * values_of(x)[i] /
                                std::sqrt(reference.phi[i % C] + 1e-5) +
                            reference.bias[i % C]);
      CHECK(largest_error(norm->forward(x, evaluation_context()), evaluated) < 1e-12);
    }
  }
}

TEST_CASE("the_backward_of_power_norm_is_a_derivative_only_during_the_warm_up") {
  for (const bool after : {false, true}) {
    const auto norm = power_norm(1);
    for (uint64_t step = 0; after && step < 2; ++step)
      pass_of(*norm, random_tensor(shape, 7 + step), random_tensor(shape, 9), training_context());
    const auto inputs = inputs_of(*norm, random_tensor(shape, 1));
    const auto f = [&](const std::vector<Tensor>& in) {
      return forward_of(*norm, in, looking_context());
    };
    CHECK(gradcheck(f, inputs).passed == !after);
  }
}

TEST_CASE("powernorm_v_keeps_its_exact_gradient_and_evaluates_with_phi") {
  const auto norm = random_norm("powernorm-v", C);
  auto& power = static_cast<PowerNorm&>(*norm);
  power.warm_up = 1;
  for (uint64_t step = 0; step < 3; ++step)
    norm->forward(random_tensor(shape, 7 + step), training_context());
  CHECK(power.step.item() == 3);
  CHECK_FALSE(power.e.defined());
  const Tensor x = random_tensor(shape, 1);
  CHECK(gradcheck(
      [&](const std::vector<Tensor>& in) { return forward_of(*norm, in, looking_context()); },
      inputs_of(*norm, x)));
  const Tensor weight = named_parameters(*norm)[0].tensor, bias = named_parameters(*norm)[1].tensor;
  const Tensor expected = weight * (x * pow(power.running_variance + 1e-5, -0.5)) + bias;
  CHECK(largest_error(norm->forward(x, evaluation_context()), expected) < 1e-12);
}

TEST_CASE("group_scaling_divides_each_group_of_a_token_first") {
  const auto scaled = random_norm("powernorm", 6), plain = random_norm("powernorm", 6);
  static_cast<PowerNorm&>(*scaled).groups = 2;
  const Tensor x = random_tensor({2, 3, 6}, 1), groups = x.view({12, 3});
  const Tensor divided = groups * pow(mean(groups * groups, 1, true) + 1e-5, -0.5);
  const Tensor y = scaled->forward(x, training_context());
  CHECK(largest_error(y, plain->forward(divided.view({2, 3, 6}), training_context())) < 1e-12);
  CHECK(largest_error(y, plain->forward(x, training_context())) > 1e-3);
  CHECK(gradcheck(
      [&](const std::vector<Tensor>& in) { return forward_of(*scaled, in, looking_context()); },
      inputs_of(*scaled, x)));
  static_cast<PowerNorm&>(*scaled).groups = 4;
  CHECK_THROWS_WITH(scaled->forward(x, training_context()),
                    ContainsSubstring("4 groups do not divide 6 channels"));
}

TEST_CASE("padding_longer_changes_nothing_of_power_norm") {
  const auto norm = power_norm(0), other = power_norm(0);
  const auto repadded = [](const Tensor& x, double padding) {
    return concat({x, Tensor::full({B, 3, C}, padding, DType::f64)}, 1);
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Tensor x = random_tensor(shape, seed), dy = random_tensor(shape, 10 + seed);
    const NormContext context = training_context(lengths_of({4, 1, 3}));
    const NormPass shorter = pass_of(*norm, x, dy, context);
    const NormPass longer = pass_of(*other, repadded(x, 5), repadded(dy, 0), context);
    CHECK(largest_error(slice(longer.y, 1, 0, T), shorter.y) < 1e-12);
    CHECK(largest_error(longer.dx, repadded(shorter.dx, 0)) < 1e-12);
    CHECK(largest_error(longer.gradients[0], shorter.gradients[0]) < 1e-12);
    CHECK(largest_error(other->e, norm->e) < 1e-12);
    CHECK(largest_error(other->running_variance, norm->running_variance) < 1e-12);
  }
}

// ---------------------------------------------------------------- buffers

constexpr int steps = 5;  // the warm-up ends after the second

/// What a step leaves: gradients and buffers, to be compared bit by bit.
using Trace = std::vector<Tensor>;
using Step = std::function<void(PowerNorm&, uint64_t seed, Trace&)>;

void add_pass(PowerNorm& norm, const NormPass& pass, Trace& trace) {
  for (const Tensor& tensor : pass.all()) trace.push_back(tensor.clone());
  for (const Tensor& buffer : buffers_of(norm)) trace.push_back(buffer);
}
NormPass plain_pass(Norm& norm, uint64_t seed) {
  return pass_of(norm, random_tensor(shape, seed), random_tensor(shape, 100 + seed),
                 training_context(lengths_of({4, 1, 3})));
}
void plain_step(PowerNorm& norm, uint64_t seed, Trace& trace) {
  add_pass(norm, plain_pass(norm, seed), trace);
}
Trace trace_of(const Step& step) {
  const auto norm = power_norm(2);
  Trace trace;
  for (uint64_t seed = 1; seed <= steps; ++seed) step(*norm, seed, trace);
  return trace;
}

TEST_CASE("recompute_leaves_power_norm_the_same_bits") {
  for (const int depth : {1, 2, 3}) {
    const Trace trace = trace_of([depth](PowerNorm& norm, uint64_t seed, Trace& trace) {
      Recomputed recomputed(norm, depth);
      add_pass(norm, plain_pass(recomputed, seed), trace);
    });
    CHECK(all_same_bits(trace, trace_of(plain_step)));
  }
}

TEST_CASE("one_power_norm_used_twice_on_a_tape_may_be_recomputed") {
  const auto twice = [](bool again) {
    return trace_of([again](PowerNorm& norm, uint64_t seed, Trace& trace) {
      struct Twice : Norm {
        Norm& norm;
        explicit Twice(Norm& norm) : norm(norm) {}
        Tensor forward(const Tensor& x, const NormContext& context) override {
          return norm.forward(sigmoid(norm.forward(x, context)), context);
        }
        void visit(Visitor& visitor) override { norm.visit(visitor); }
      };
      Recomputed recomputed(norm, again);
      Twice both(recomputed);
      add_pass(norm, plain_pass(both, seed), trace);
    });
  };
  CHECK(all_same_bits(twice(true), twice(false)));
}

TEST_CASE("evaluations_and_looks_leave_the_buffers_alone") {
  const Trace trace = trace_of([](PowerNorm& norm, uint64_t seed, Trace& trace) {
    norm.forward(random_tensor(shape, 50 + seed), evaluation_context());
    pass_of(norm, random_tensor(shape, 60 + seed), random_tensor(shape, 9), evaluation_context());
    pass_of(norm, random_tensor(shape, 70 + seed), random_tensor(shape, 9), looking_context());
    plain_step(norm, seed, trace);
  });
  CHECK(all_same_bits(trace, trace_of(plain_step)));
}

TEST_CASE("micro_batches_update_the_buffers_once_each_recomputed_or_not") {
  const auto micro_batches = [](bool again) {
    return trace_of([again](PowerNorm& norm, uint64_t seed, Trace& trace) {
      for (const NamedTensor& entry : named_parameters(norm)) zero_gradient(entry.tensor);
      Recomputed recomputed(norm, again);
      for (const uint64_t half : {0, 1}) {
        Tape tape;
        const Tensor x = random_tensor(shape, 2 * seed + half);
        const Tensor y = recomputed.forward(x, training_context());
        const Tensor dy = random_tensor(shape, 30 + half);
        tape.backward_from({&y, 1}, {&dy, 1});
      }
      trace.push_back(gradient(norm.weight).clone());
      for (const Tensor& buffer : buffers_of(norm)) trace.push_back(buffer);
    });
  };
  const Trace trace = micro_batches(false);
  CHECK(trace.back().item() == 2 * steps);
  CHECK(all_same_bits(trace, micro_batches(true)));
  // The same batches one by one leave the same buffers.
  const auto norm = power_norm(2);
  for (uint64_t seed = 2; seed < 2 * steps + 2; ++seed)
    pass_of(*norm, random_tensor(shape, seed), random_tensor(shape, 30 + seed % 2),
            training_context());
  const Trace last(trace.end() - 3, trace.end());
  CHECK(all_same_bits(last, buffers_of(*norm)));
}

TEST_CASE("power_norm_may_stop_and_resume_at_any_step") {
  const Trace expected = trace_of(plain_step);
  for (uint64_t stop = 0; stop <= steps; ++stop) {
    INFO("stopped after step " << stop);
    auto norm = power_norm(2);
    Trace trace;
    for (uint64_t seed = 1; seed <= steps; ++seed) {
      if (seed == stop + 1) {
        auto resumed = std::make_unique<PowerNorm>(C);
        convert(*resumed, DType::f64);
        resumed->warm_up = 2;
        CHECK(copy_tensors(*norm, *resumed).empty());
        norm = std::move(resumed);
      }
      plain_step(*norm, seed, trace);
    }
    CHECK(all_same_bits(trace, expected));
  }
}

}  // namespace
}  // namespace tapeformer
