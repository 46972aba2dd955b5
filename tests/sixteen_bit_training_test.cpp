// Training in bf16 and f16: master weights, loss scaling, and what a run leaves on the disk.
#include <cmath>

#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/lively_model.h"
#include "tests/norms.h"
#include "tests/temporary_folder.h"
#include "train/diagnosis.h"
#include "train/model_config.h"
#include "train/trainer.h"

using namespace tapeformer;

namespace {

// Gradient descent that leaves rounding to its base class.
struct Descent : Optimizer {
  explicit Descent(Parameters& parameters) : Optimizer(parameters) {}
  void visit_state(const std::function<void(const std::string&, const Tensor&)>&) override {}
  void update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool) override {
    auto* values = parameters_.values().data<float>();
    const auto* gradients = parameters_.gradients().data<float>();
    for (int64_t i = begin; i < end; ++i)
      values[i] -= static_cast<float>(lr * factor.item() * gradients[i]);
  }
};

template <class Descending>
void check_small_updates() {
  GPT model(tiny("layernorm"));
  convert(model, DType::bf16);
  Parameters parameters(model);
  REQUIRE(parameters.values().dtype() == DType::f32);
  REQUIRE(parameters.dtype() == DType::bf16);
  const auto& gain = parameters.entries().back();
  const size_t last = parameters.entries().size() - 1;
  parameters.value(last).fill(1);
  parameters.round_weights();
  Descending optimizer(parameters);
  for (int step = 0; step < 8; ++step) {  // 1 - 2^-10 is no bf16, 1 - 2^-7 is one
    parameters.zero_gradients();
    parameters.gradients().fill(1);
    optimizer.step(0x1p-10);
    if (step == 0) CHECK(values_of(gain.tensor)[0] == 1);
  }
  CHECK(values_of(parameters.value(last))[0] == 1 - 0x1p-7);
  CHECK(values_of(gain.tensor)[0] == 1 - 0x1p-7);
}

}  // namespace

TEST_CASE("master_weights_keep_updates_that_are_too_small_for_16_bits") {
  check_small_updates<SGD>();
  check_small_updates<Descent>();
}

namespace {

struct Run {
  Stories stories;
  TransformerConfig config = stories.config("layernorm");
  TrainOptions options;
  std::vector<double> losses;
  TrainResult result;
  double first_scale = 0;  // 0: the default

  Run(const std::filesystem::path& out, DType dtype) : dtype_(dtype) {
    options.schedule.steps = 24;
    options.schedule.lr = 5e-3;
    options.schedule.warmup = 0;
    options.eval_every = 0;
    options.save_every = 1000;
    options.out = out;
    options.description = {to_json(config), stories.tokenizer->to_json(), "{}", 0};
  }
  Run& train(int64_t stop_after = 0, bool resume = false) {
    GPT model(config, 3);
    convert(model, dtype_);
    Trainer trainer(model, *stories.corpus, options);
    if (resume)
      trainer.resume();
    else if (first_scale)
      trainer.set_loss_scale(first_scale);
    TrainEvents events;
    events.on_step = [&](int64_t, const StepResult& s, double) { losses.push_back(s.loss); };
    result = trainer.run(stop_after, events);
    return *this;
  }

 private:
  DType dtype_;
};

}  // namespace

TEST_CASE("training_in_16_bits_follows_training_in_f32") {
  const std::vector<double> f32 = Run({}, DType::f32).train().losses;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::vector<double> losses = Run({}, dtype).train().losses;
    INFO(dtype);
    CHECK(losses[0] != f32[0]);  // it really computes in 16 bits
    CHECK(largest_error(losses, f32) < (dtype == DType::bf16 ? 0x1p-6 : 0x1p-9));
    CHECK(losses.back() < losses[0] - 0.1);
  }
}

TEST_CASE("every_norm_and_placement_trains_in_16_bits_as_in_f32") {
  const auto losses = [](const std::string& norm, const std::string& placement, DType dtype) {
    Run run({}, dtype);
    run.config.norm = norm;
    run.config.placement = placement;
    run.config.qk_norm = norm == "none";
    run.options.schedule.steps = 6;
    return run.train().losses;
  };
  const auto compare = [&](const std::string& norm, const std::string& placement) {
    const std::vector<double> f32 = losses(norm, placement, DType::f32);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(norm, placement, dtype);
      const std::vector<double> narrow = losses(norm, placement, dtype);
      CHECK(std::abs(narrow[0] - f32[0]) < 0x1p-6);
      CHECK(largest_error(narrow, f32) < 0x1p-4);  // f16 may skip its first steps
    }
  };
  for (const std::string& norm : all_norms) compare(norm, "pre");
  for (const std::string& placement : placement_names()) compare("layernorm", placement);
}

TEST_CASE("a_run_in_16_bits_that_stops_and_resumes_has_the_bits_of_one_that_does_not") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const TemporaryFolder folder;
    const std::vector<double> whole = Run({}, dtype).train().losses;
    Run run(folder.path, dtype);
    run.train(10).train(0, true);
    INFO(dtype);
    CHECK(run.losses == whole);
    CHECK(run.result.steps == 24);
    // What lies on the disk are the masters.
    GPT loaded(run.config);
    load_model(folder.path, loaded);
    const auto parameters = named_parameters(loaded);
    CHECK(std::ranges::any_of(parameters, [&](const NamedTensor& p) {
      return !same_bits(cast(cast(p.tensor.detach(), dtype), DType::f32), p.tensor);
    }));
  }
}

TEST_CASE("a_gradient_that_overflows_f16_skips_the_step_and_halves_the_scale") {
  Stories stories;
  GPT model(stories.config("layernorm"));
  convert(model, DType::f16);
  Parameters parameters(model);
  AdamW optimizer(parameters);
  LossScale scale{.value = 0x1p40};
  const Tensor before = parameters.values().clone();
  const auto step = [&](int64_t i) {
    return training_step(model, parameters, optimizer, *stories.corpus, i, 1, 1e-3, 1, 1, &scale);
  };
  const StepResult first = step(0);
  CHECK(first.skipped);
  CHECK(scale.value == 0x1p39);
  CHECK(scale.skipped == 1);
  CHECK(optimizer.steps() == 0);
  CHECK(same_bits(parameters.values(), before));
  int64_t steps = 1;
  while (step(steps).skipped) REQUIRE(++steps < 40);
  CHECK(scale.skipped == steps);
  CHECK(scale.value == std::ldexp(1.0, 40 - static_cast<int>(steps)));
  CHECK(optimizer.steps() == 1);
  CHECK(!same_bits(parameters.values(), before));
}

TEST_CASE("the_loss_scale_doubles_after_2000_good_steps_and_never_falls_below_1") {
  LossScale scale;
  for (int i = 0; i < 1999; ++i) scale.update(true);
  CHECK(scale.value == 65536);
  scale.update(true);
  CHECK(scale.value == 131072);
  for (int i = 0; i < 40; ++i) scale.update(false);
  CHECK(scale.value == 1);
  CHECK(scale.skipped == 40);
}

TEST_CASE("the_loss_scale_changes_no_update_that_does_not_overflow") {
  // Powers of two: products with them are exact, so bf16, which has f32's range, shows it bit for
  // bit.
  const auto updated = [](double scale) {
    Stories stories;
    GPT model(stories.config("layernorm"));
    convert(model, DType::bf16);
    Parameters parameters(model);
    AdamW optimizer(parameters);
    LossScale loss_scale{.value = scale};
    const StepResult result =
        training_step(model, parameters, optimizer, *stories.corpus, 0, 1, 1e-3, 1, 1, &loss_scale);
    return std::pair(result.grad_norm, parameters.values().to_vector<float>());
  };
  CHECK(updated(1) == updated(1024));
}

TEST_CASE("a_gradient_too_small_for_f16_arrives_with_the_loss_scale") {
  // The gradient of the product is 2^-26, a quarter of the smallest f16.
  const auto slope = [](double scale) {
    const Tensor w = requires_gradient(cast(Tensor::full({1}, 1), DType::f16));
    Tape tape;
    tape.backward(affine(cast(w * w, DType::f32), 0x1p-26, 0), scale);
    return gradient(w).item() / scale;
  };
  CHECK(slope(1) == 0);
  CHECK(slope(LossScale{}.value) == 0x1p-25);
}

TEST_CASE("the_loss_scale_and_its_counts_go_on_where_a_run_stopped") {
  const TemporaryFolder folder;
  Run whole({}, DType::f16), run(folder.path, DType::f16);
  whole.first_scale = run.first_scale = 0x1p34;
  whole.train();
  run.train(3).train(0, true);
  CHECK(whole.result.skipped_steps > 3);  // the run stops among the skipped steps
  CHECK(run.result.skipped_steps == whole.result.skipped_steps);
  CHECK(run.losses == whole.losses);
}

TEST_CASE("a_doctor_sees_the_gradients_of_an_f16_model_in_their_size") {
  Stories stories;
  const auto examined = [&](DType dtype) {
    GPT model(stories.config("layernorm"), 3);
    convert(model, dtype);
    return examine(model, *stories.corpus);
  };
  const auto got = examined(DType::f16), expected = examined(DType::f32);
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(got[i].name);
    CHECK(std::abs(got[i].gradient_norm / expected[i].gradient_norm - 1) < 0.02);
    CHECK(got[i].moved());
  }
}
