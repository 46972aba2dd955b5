// What every norm promises by its name: gradients, what it mixes, hard inputs, bits.
#include <algorithm>

#include "autograd/gradcheck.h"
#include "layers/batch_norms.h"
#include "tests/catch.h"
#include "tests/norms.h"

namespace tapeformer {
namespace {

constexpr int64_t C =
    32;  // two groups of group norm, two measured channels of the partial RMS norm

bool is_one_of(const std::string& name, const std::vector<std::string>& names) {
  return std::ranges::count(names, name) > 0;
}
const std::vector<std::string> over_samples = {"batchnorm", "batchnorm-unmasked", "powernorm",
                                               "powernorm-v"};
const std::vector<std::string> over_time = {"groupnorm-time", "instancenorm", "layernorm-time"};
/// Their backward is no derivative of their forward; it is tested with each of them.
const std::vector<std::string> detached = {"adanorm", "layernorm-detach"};

TEST_CASE("every_norm_is_known_by_its_name") {
  const std::vector<std::string> known = norm_names();
  for (const std::string& name : all_norms) CHECK(std::ranges::count(known, name) == 1);
}

TEST_CASE("gradients_of_every_norm_are_right_with_and_without_padding") {
  for (const std::string& name : all_norms) {
    if (is_one_of(name, detached)) continue;
    for (const Tensor& lengths : {Tensor{}, lengths_of({3, 1})}) {
      const auto norm = random_norm(name, C);
      // Running statistics unlike the batch's. PowerNorm is within its warm-up.
      norm->forward(random_tensor({2, 3, C}, 7), training_context());
      const auto inputs = inputs_of(*norm, random_tensor({2, 3, C}, 1));
      for (const NormContext& context : {looking_context(lengths), evaluation_context(lengths)}) {
        const GradcheckResult result = gradcheck(
            [&](const std::vector<Tensor>& in) { return forward_of(*norm, in, context); }, inputs);
        INFO(name << ", training " << context.training << ": " << result.message);
        CHECK(result);
      }
    }
  }
}

/// One step in training after PowerNorm's warm-up, on padded input.
std::vector<Tensor> fingerprint(const std::string& name) {
  const auto norm = random_norm(name, C);
  if (auto* power = dynamic_cast<PowerNorm*>(norm.get())) power->warm_up = 0;
  const Tensor dy = random_tensor({3, 4, C}, 2);
  for (const uint64_t seed : {7, 8})
    pass_of(*norm, random_tensor({3, 4, C}, seed), dy, training_context());
  const NormPass pass =
      pass_of(*norm, random_tensor({3, 4, C}, 1), dy, training_context(lengths_of({4, 1, 3})));
  return {pass.y, pass.dx};
}

TEST_CASE("no_two_names_of_norms_mean_the_same") {
  std::vector<std::vector<Tensor>> prints;
  for (const std::string& name : all_norms) prints.push_back(fingerprint(name));
  for (size_t i = 0; i < prints.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      INFO(all_norms[i] << " and " << all_norms[j]);
      CHECK(std::max(largest_error(prints[i][0], prints[j][0]),
                     largest_error(prints[i][1], prints[j][1])) > 1e-3);
    }
}

/// How far each row [B,T] of the output moves when row (1, 2) of the input changes.
std::vector<double> moved_rows(Norm& norm, const NormContext& context) {
  const Tensor before = random_tensor({3, 5, C}, 1, DType::f32), after = before.clone();
  after.view({15, C}).rows(7, 8).copy_from(random_tensor({1, C}, 2, DType::f32));
  const auto y0 = values_of(norm.forward(before, context));
  const auto y1 = values_of(norm.forward(after, context));
  std::vector<double> moved(15, 0);
  for (size_t i = 0; i < y0.size(); ++i)
    moved[i / C] = std::max(moved[i / C], std::abs(y0[i] - y1[i]));
  return moved;
}

TEST_CASE("what_a_norm_mixes_is_what_it_says_to_the_last_bit") {
  for (const std::string& name : all_norms)
    for (const bool training : {false, true}) {
      const auto norm = random_norm(name, C, DType::f32);
      norm->forward(random_tensor({3, 5, C}, 7, DType::f32), training_context());
      const Mixes mixes = norm->mixes(training);
      CHECK((mixes == Mixes::samples) == (training && is_one_of(name, over_samples)));
      CHECK((mixes == Mixes::time) == is_one_of(name, over_time));
      const auto moved = moved_rows(*norm, training ? looking_context() : evaluation_context());
      for (int row = 0; row < 15; ++row) {
        INFO(name << ", training " << training << ", row " << row);
        const bool same_sample = row / 5 == 1;
        if (row == 7 || mixes == Mixes::samples || (mixes == Mixes::time && same_sample))
          CHECK(moved[row] > 1e-5);
        else
          CHECK(moved[row] == 0);
      }
    }
}

TEST_CASE("zeros_give_finite_outputs_and_gradients") {
  const Tensor some = random_tensor({3, 4, C}, 1, DType::f32);
  some.rows(1, 2).fill(0);                  // one sample
  some.view({12, C}).rows(10, 11).fill(0);  // one token
  for (const std::string& name : all_norms)
    for (const Tensor& x : {Tensor::zeros({3, 4, C}), some})
      for (const Tensor& lengths : {Tensor{}, lengths_of({4, 0, 3})})
        for (const bool training : {true, false}) {
          INFO(name << ", training " << training);
          const auto norm = random_norm(name, C, DType::f32);
          if (auto* power = dynamic_cast<PowerNorm*>(norm.get())) power->warm_up = 0;
          const Tensor dy = random_tensor({3, 4, C}, 2, DType::f32);
          const NormContext context =
              training ? training_context(lengths) : evaluation_context(lengths);
          for (int step = 0; step < 2; ++step)
            CHECK(all_finite(pass_of(*norm, x, dy, context).all()));
          CHECK(all_finite(buffers_of(*norm)));
        }
}

TEST_CASE("a_single_time_step_gives_finite_outputs_and_gradients") {
  for (const std::string& name : all_norms) {
    INFO(name);
    const auto norm = random_norm(name, C, DType::f32);
    const NormPass pass = pass_of(*norm, random_tensor({3, 1, C}, 1, DType::f32),
                                  random_tensor({3, 1, C}, 2, DType::f32), training_context());
    CHECK(all_finite(pass.all()));
  }
}

TEST_CASE("every_norm_keeps_the_digits_of_values_far_from_zero") {
  const Tensor x = affine(random_tensor({8, 32, C}, 1, DType::f32), 1, 1e4);
  for (const std::string& name : all_norms) {
    if (name == "none") continue;
    INFO(name);
    const auto single = random_norm(name, C, DType::f32), exact = random_norm(name, C);
    const Tensor y = single->forward(x, training_context());
    // Numbers near 1e4 are 1e-3 apart, so a mean that is subtracted may be off by half of that, and
    // the gain triples it.
    CHECK(largest_error(y, exact->forward(cast(x, DType::f64), training_context())) < 4e-3);
  }
}

TEST_CASE("every_norm_gives_the_same_bits_on_any_number_of_threads") {
  const Shape shape{3, 167, 33};
  const Tensor x = random_tensor(shape, 1, DType::f32), dy = random_tensor(shape, 2, DType::f32);
  for (const std::string& name : all_norms) {
    INFO(name);
    CHECK(threads_do_not_matter([&] {
      const auto norm = random_norm(name, 33, DType::f32);
      if (auto* power = dynamic_cast<PowerNorm*>(norm.get())) power->warm_up = 0;
      auto results = pass_of(*norm, x, dy, training_context(lengths_of({167, 0, 64}))).all();
      for (const Tensor& buffer : buffers_of(*norm)) results.push_back(buffer);
      return results;
    }));
  }
}

TEST_CASE("buffers_are_no_parameters_and_floating_ones_follow_the_dtype") {
  for (const std::string& name : all_norms) {
    const auto norm = random_norm(name, C, DType::f64);
    for (const NamedTensor& entry : named_tensors(*norm)) {
      INFO(name << ", " << entry.name);
      const bool is_buffer =
          is_one_of(entry.name, {"running_mean", "running_variance", "e", "step"});
      CHECK((entry.role == Role::buffer) == is_buffer);
      CHECK(entry.tensor.dtype() == (entry.name == "step" ? DType::i32 : DType::f64));
      CHECK(needs_gradient(entry.tensor) == !is_buffer);
    }
  }
}

}  // namespace
}  // namespace tapeformer
