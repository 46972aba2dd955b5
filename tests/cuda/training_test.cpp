// A tiny model trained on the GPU follows the one on the CPU.
#include <cmath>

#include "autograd/ops.h"
#include "data/languages.h"
#include "emulation.h"
#include "tests/catch.h"
#include "tests/lively_model.h"
#include "tests/norms.h"
#include "tests/temporary_folder.h"
#include "train/evaluation.h"
#include "train/trainer.h"
#include "train/translator.h"

using namespace tapeformer;

namespace {

struct Losses {
  std::vector<double> of_steps, norms;
  double validation = 0;
};

Losses train(const TransformerConfig& config, const Corpus& corpus, Device device, int64_t steps,
             DType dtype = DType::f32) {
  GPT model(config, 1);
  convert(model, dtype, device);
  Parameters parameters(model);
  AdamW optimizer(parameters);
  LossScale scale;
  Losses losses;
  for (int64_t step = 0; step < steps; ++step) {
    const StepResult result = training_step(model, parameters, optimizer, corpus, step, 2, 1e-2,
                                            1.0, 1, dtype == DType::f16 ? &scale : nullptr);
    losses.of_steps.push_back(result.loss);
    losses.norms.push_back(result.grad_norm);
  }
  losses.validation = evaluate(model, corpus, 2);
  return losses;
}

void check_equal(const TransformerConfig& config, const Corpus& corpus, int64_t steps) {
  const Losses cpu = train(config, corpus, Device::cpu, steps);
  const Losses gpu = train(config, corpus, Device::cuda, steps);
  for (int64_t step = 0; step < steps; ++step) {
    INFO("step " << step);
    CHECK(std::abs(gpu.of_steps[step] - cpu.of_steps[step]) < 1e-4);
    CHECK(std::abs(gpu.norms[step] - cpu.norms[step]) < 1e-3 * cpu.norms[step]);
  }
  CHECK(cpu.of_steps.back() < cpu.of_steps.front() - 0.2);
  CHECK(std::abs(gpu.validation - cpu.validation) < 1e-4);
}

}  // namespace

TEST_CASE("cuda_trains_a_gpt_as_the_cpu_does") {
  const Stories stories;
  TransformerConfig config = stories.config("layernorm");
  config.dropout = 0.1;
  check_equal(config, *stories.corpus, 10);
}

TEST_CASE("cuda_trains_a_llama_on_padded_lines_as_the_cpu_does") {
  const Stories stories(true);
  TransformerConfig config = stories.config("rmsnorm");
  config.position = "rotary";
  config.activation = "swiglu";
  config.kv_heads = 1;
  check_equal(config, *stories.corpus, 10);
}

TEST_CASE("cuda_trains_with_every_norm_on_padded_lines_as_the_cpu_does") {
  const Stories stories(true);
  for (const std::string& norm : all_norms) {
    INFO(norm);
    const TransformerConfig config = stories.config(norm);
    const Losses cpu = train(config, *stories.corpus, Device::cpu, 3);
    const Losses gpu = train(config, *stories.corpus, Device::cuda, 3);
    for (size_t step = 0; step < cpu.of_steps.size(); ++step)
      CHECK(std::abs(gpu.of_steps[step] - cpu.of_steps[step]) < 1e-4);
    CHECK(cpu.of_steps.back() < cpu.of_steps.front());
    // Biases that a batch norm takes out again have no gradient but rounding, which AdamW makes a
    // whole step of; the running mean, which validation takes out instead, is not quite theirs.
    const double bound = norm.starts_with("batchnorm") ? 1e-2 : 1e-4;
    CHECK(std::abs(gpu.validation - cpu.validation) < bound);
  }
}

TEST_CASE("cuda_trains_in_16_bits_as_the_cpu_does") {
  const Stories stories;
  const TransformerConfig config = stories.config("layernorm");
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Losses cpu = train(config, *stories.corpus, Device::cpu, 10, dtype);
    const Losses gpu = train(config, *stories.corpus, Device::cuda, 10, dtype);
    const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    INFO(dtype);
    for (size_t step = 0; step < cpu.of_steps.size(); ++step)
      CHECK(std::abs(gpu.of_steps[step] - cpu.of_steps[step]) < 2 * rounding * cpu.of_steps[step]);
    CHECK(gpu.of_steps.back() < gpu.of_steps.front() - 0.2);
  }
}

TEST_CASE("cuda_trains_a_translator_as_the_cpu_does") {
  const SentenceCoders coders = learn_coders(generate_pairs(1, 100), 100, false);
  const PairCorpus corpus(generate_pairs(2, 60), coders.source, coders.target,
                          {.batch_tokens = 120, .longest = 40});
  const auto losses_on = [&](Device device) {
    Seq2Seq model({.vocabulary = coders.target.vocabulary(),
                   .context = 40,
                   .layers = 1,
                   .heads = 2,
                   .channels = 16,
                   .position = "sinusoidal",
                   .dropout = 0.1,
                   .encoder_layers = 1},
                  1);
    convert(model, DType::f32, device);
    Parameters parameters(model);
    AdamW optimizer(parameters);
    TranslationTask task(model, coders, corpus, corpus, {}, {.smoothing = 0.1});
    std::vector<double> losses;
    for (int64_t step = 0; step < 10; ++step)
      losses.push_back(
          training_step(model, parameters, optimizer, task.micro_batches(step), step, 1e-2, 1.0, 1)
              .loss);
    return losses;
  };
  const std::vector<double> cpu = losses_on(Device::cpu), gpu = losses_on(Device::cuda);
  for (size_t step = 0; step < cpu.size(); ++step) {
    INFO("step " << step);
    CHECK(std::abs(gpu[step] - cpu[step]) < 1e-4);
  }
  CHECK(cpu.back() < cpu.front() - 0.2);
}

namespace {

GPT& converted(GPT& model, DType dtype, Device device) {
  convert(model, dtype, device);
  return model;
}

// A model in training, of which a step's last loss can be made another function of itself.
struct InTraining {
  Stories stories;
  GPT model;
  Parameters parameters;
  AdamW optimizer{parameters};
  LossScale scale;

  // Where g++ 12 inlines it twice it warns, falsely, of a dangling pointer.
  [[gnu::noinline]] explicit InTraining(Device device, DType dtype = DType::f32,
                                        const std::string& norm = "layernorm", bool lines = false)
      : stories(lines),
        model(stories.config(norm), 1),
        parameters(converted(model, dtype, device)) {}

  TrainingStep start(int64_t step, int64_t accumulate = 2,
                     const std::function<Tensor(const Tensor&)>& change = {}) {
    auto batches = language_batches(model, *stories.corpus, step, accumulate);
    if (change)
      batches.back().loss = [loss = batches.back().loss, change] { return change(loss()); };
    return {model,
            parameters,
            optimizer,
            std::move(batches),
            step,
            1e-2,
            1.0,
            1,
            parameters.dtype() == DType::f16 ? &scale : nullptr};
  }
};

}  // namespace

TEST_CASE("cuda_steps_started_after_one_that_is_not_finite_change_nothing") {
  struct Case {
    std::function<Tensor(const Tensor&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](const Tensor& loss) { return affine(loss, 1, INFINITY); }, "loss of step 2 is inf"},
      {[](const Tensor& loss) { return affine(loss, 1e30, 0); },
       "gradient norm of step 2 is inf; every gradient is finite"},
      {[](const Tensor& loss) { return loss + sqrt(affine(loss, 0, 0)); },
       "nan; the first parameter whose gradient is not finite is 'token_embedding.weight'"}};
  for (const Device device : {Device::cpu, Device::cuda})
    for (const auto& [change, message] : cases) {
      INFO(device << ", " << message);
      InTraining training(device);
      const auto values = [&] { return training.parameters.values().to_vector<float>(); };
      training.start(0).result();
      const std::vector<float> before = values();
      TrainingStep bad = training.start(1, 2, change), next = training.start(2);
      CHECK_THROWS_WITH(bad.result(), ContainsSubstring(message));
      CHECK(std::isfinite(next.result().loss));  // its own numbers are good
      CHECK(values() == before);
      CHECK(training.optimizer.steps() == 1);
      training.start(3).result();
      CHECK(values() != before);
      CHECK(training.optimizer.steps() == 2);
    }
}

#ifdef TAPEFORMER_CUDA_EMULATED
TEST_CASE("cuda_training_step_waits_once_when_all_is_under_way") {
  constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  constexpr int64_t counts[] = {1, 3};
  for (const DType dtype : dtypes)
    for (const int64_t accumulate : counts) {
      INFO(dtype << ", " << accumulate);
      InTraining training(Device::cuda, dtype);
      const size_t before = cuda_emulator::waits();
      TrainingStep first = training.start(0, accumulate), second = training.start(1, accumulate);
      CHECK(cuda_emulator::waits() == before);
      const double loss = first.result().loss;
      CHECK(cuda_emulator::waits() == before + 1);
      const double second_loss = second.result().loss;
      CHECK(cuda_emulator::waits() == before + 2);
      InTraining on_cpu(Device::cpu, dtype);
      const double bound = dtype == DType::f32 ? 1e-4 : 0.02;
      CHECK(std::abs(loss - on_cpu.start(0, accumulate).result().loss) < bound);
      CHECK(std::abs(second_loss - on_cpu.start(1, accumulate).result().loss) < bound);
    }
}

TEST_CASE("cuda_norms_do_not_wait_within_a_step_of_padded_lines") {
  for (const std::string& norm : all_norms) {
    INFO(norm);
    InTraining training(Device::cuda, DType::f32, norm, true);
    const size_t before = cuda_emulator::waits();
    TrainingStep first = training.start(0), second = training.start(1);
    CHECK(cuda_emulator::waits() == before);
    first.result();
    second.result();
  }
}
#endif

TEST_CASE("cuda_run_tells_of_every_step_in_order_as_one_on_the_cpu") {
  const Stories stories;
  struct Told {
    std::vector<int64_t> steps, lines;  // the lines of the metrics: -step for an evaluation
    std::vector<double> losses;
  };
  const auto told_on = [&](Device device) {
    const TemporaryFolder folder;
    GPT model(stories.config("layernorm"), 1);
    convert(model, DType::f32, device);
    TrainOptions options;
    options.schedule = {.name = "constant", .lr = 1e-2, .warmup = 0, .steps = 8};
    options.eval_every = 3;
    options.eval_batches = 1;
    options.out = folder.path;
    Trainer trainer(model, *stories.corpus, options);
    Told told;
    TrainEvents events;
    events.on_step = [&](int64_t step, const StepResult& result, double) {
      told.steps.push_back(step);
      told.losses.push_back(result.loss);
    };
    events.on_evaluation = [&](int64_t step, double) { CHECK(std::ssize(told.steps) == step); };
    trainer.run(7, events);  // after which nothing is due
    for (const Metrics& metrics : read_metrics(folder / "metrics.jsonl"))
      told.lines.push_back(metrics.train_loss ? metrics.step : -metrics.step);
    return told;
  };
  const Told cpu = told_on(Device::cpu), gpu = told_on(Device::cuda);
  CHECK(gpu.steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(gpu.steps == cpu.steps);
  CHECK(gpu.lines == std::vector<int64_t>{0, 1, 2, 3, -3, 4, 5, 6, -6, 7});
  CHECK(gpu.lines == cpu.lines);
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    CHECK(std::abs(gpu.losses[i] - cpu.losses[i]) < 1e-4);
}

TEST_CASE("cuda_run_ends_at_the_step_whose_loss_is_not_finite_though_the_next_has_begun") {
  const Stories stories;
  for (const Device device : {Device::cpu, Device::cuda}) {
    INFO(device);
    const TemporaryFolder folder;
    GPT model(stories.config("layernorm"), 1);
    convert(model, DType::f32, device);
    TrainOptions options;
    options.schedule = {.name = "constant", .lr = 1e38, .warmup = 0, .steps = 8};
    options.eval_batches = 1;
    options.out = folder.path;
    Trainer trainer(model, *stories.corpus, options);
    CHECK_THROWS_WITH(trainer.run(0, {}), ContainsSubstring("loss of step 2 is"));
    CHECK(trainer.step() == 1);
    CHECK(read_metrics(folder / "metrics.jsonl").back().step == 1);
  }
}
