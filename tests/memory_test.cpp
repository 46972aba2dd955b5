// The memory that training takes: what is told before is less than that, and not much less.
#include "train/memory.h"

#include "core/storage.h"
#include "layers/gpt.h"
#include "layers/seq2seq.h"
#include "optim/optimizer.h"
#include "tests/catch.h"
#include "train/format.h"

using namespace tapeformer;

namespace {

double matrix_numbers(Module& model) {
  double numbers = 0;
  for (const NamedTensor& entry : named_parameters(model))
    if (entry.tensor.rank() >= 2) numbers += static_cast<double>(entry.tensor.numel());
  return numbers;
}

// The most bytes that live while a model of this configuration is made and takes a step.
double measured(const TransformerConfig& config, DType dtype, int64_t rows) {
  const size_t before = memory_stats().live_bytes;
  reset_peak_memory();
  {
    GPT model(config, 1);
    convert(model, dtype);
    Parameters parameters(model);
    AdamW optimizer(parameters);
    const Tensor tokens = Tensor::zeros({rows, config.context}, DType::i32);
    Tape tape;
    tape.backward(model.loss(tokens, tokens, {.training = true}));
    optimizer.step(1e-3, 1.0);
  }
  return static_cast<double>(memory_stats().peak_bytes - before);
}

std::string objection(const TransformerConfig& config, int64_t tokens) {
  try {
    check_training_memory(config, DType::f32, tokens, Device::cpu);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the_sizes_of_matrices_are_told_from_the_configuration") {
  const TransformerConfig base{
      .vocabulary = 50, .context = 16, .layers = 3, .heads = 4, .channels = 32, .hidden = 96};
  std::vector<TransformerConfig> configs(6, base);
  configs[1].hidden = 0;
  configs[2].activation = "swiglu";
  configs[3].kv_heads = 2;
  configs[4].tied = false;
  configs[5].position = "rotary";
  for (const TransformerConfig& config : configs) {
    GPT model(config, 1);
    CHECK(matrix_sizes(config).all() == matrix_numbers(model));
  }
  for (TransformerConfig config : configs) {
    config.encoder_layers = 2;
    config.source_vocabulary = 70;
    Seq2Seq model(config, 1);
    CHECK(matrix_sizes(config).all() == matrix_numbers(model));
  }
}

TEST_CASE("training_takes_the_memory_that_is_told_before_or_a_little_more") {
  const TransformerConfig wide{
      .vocabulary = 1000, .context = 8, .layers = 4, .heads = 4, .channels = 128};
  const TransformerConfig thin{
      .vocabulary = 50, .context = 64, .layers = 6, .heads = 2, .channels = 32};
  struct Case {
    std::string activation, placement;
    DType dtype;
  };
  for (const auto& [activation, placement, dtype] :
       {Case{"gelu_tanh", "pre", DType::f32}, Case{"relu", "rezero", DType::f32},
        Case{"swiglu", "parallel", DType::f32}, Case{"relu", "post", DType::f64},
        Case{"swiglu", "pre", DType::bf16}})
    for (TransformerConfig config : {wide, thin}) {
      config.activation = activation;
      config.placement = placement;
      const int64_t rows = config.channels == wide.channels ? 1 : 8;
      const double told = training_memory(config, dtype, rows * config.context).all();
      const double taken = measured(config, dtype, rows);
      CAPTURE(activation, placement, dtype, config.channels, told, taken);
      CHECK(told <= taken);
      CHECK(told > 0.5 * taken);
    }
}

TEST_CASE("what_no_machine_can_train_is_refused_with_the_numbers_and_what_to_lower") {
  const TransformerConfig small{.vocabulary = 50, .layers = 1, .channels = 8};
  constexpr int64_t huge = int64_t{1} << 45;
  const auto with = [&](int64_t TransformerConfig::*field) {
    TransformerConfig config = small;
    config.*field = huge;
    return objection(config, 1);
  };
  CHECK(objection(small, 1) == "");
  for (const auto field :
       {&TransformerConfig::layers, &TransformerConfig::channels, &TransformerConfig::hidden})
    CHECK_THAT(with(field), ContainsSubstring("lower layers, channels or hidden"));
  CHECK_THAT(with(&TransformerConfig::context), ContainsSubstring("lower context"));
  CHECK_THAT(with(&TransformerConfig::vocabulary), ContainsSubstring("a tokenizer with fewer ids"));
  CHECK_THAT(objection(small, huge), ContainsSubstring("lower batch, context"));
  const double has = static_cast<double>(memory_limit()) / 1e9;
  CHECK_THAT(with(&TransformerConfig::context),
             ContainsSubstring("takes 4503599.6 GB") &&
                 ContainsSubstring("this machine has " + fixed(has, 1) + " GB"));
}
