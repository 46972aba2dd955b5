// A tiny model trained on the GPU follows the one on the CPU.
#include <cmath>

#include "data/languages.h"
#include "emulation.h"
#include "tests/catch.h"
#include "tests/lively_model.h"
#include "train/evaluation.h"
#include "train/generation.h"
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

TEST_CASE("cuda_generates_the_text_of_the_cpu") {
  const Stories stories;
  GPT model(stories.config("layernorm"), 1);
  const std::string cpu = generate_text(model, *stories.tokenizer, "", 30, {}, 1);
  convert(model, DType::f32, Device::cuda);
  CHECK(generate_text(model, *stories.tokenizer, "", 30, {}, 1) == cpu);
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

#ifdef TAPEFORMER_CUDA_EMULATED
TEST_CASE("cuda_training_step_waits_only_for_the_numbers_that_it_returns") {
  const Stories stories;
  GPT model(stories.config("layernorm"), 1);
  convert(model, DType::bf16, Device::cuda);
  Parameters parameters(model);
  AdamW optimizer(parameters);
  const auto waits_of = [&](int64_t step, int64_t accumulate) {
    const size_t before = cuda_emulator::waits();
    training_step(model, parameters, optimizer, *stories.corpus, step, accumulate, 1e-2, 1.0, 1);
    return cuda_emulator::waits() - before;
  };
  // A loss for each micro-batch, when all is under way, and the gradient's norm.
  CHECK(waits_of(0, 1) == 2);
  CHECK(waits_of(1, 3) == 4);
}
#endif
