// The leak test and the prefix evaluation: what they find, in numbers, and what they leave alone.
#include "train/leak.h"

#include <cmath>

#include "optim/parameters.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/lively_model.h"
#include "train/evaluation.h"

using namespace tapeformer;

TEST_CASE("norms_of_single_tokens_leak_exactly_nothing") {
  for (const std::string norm : {"layernorm", "rmsnorm", "scalenorm", "dyt", "groupnorm", "none"})
    for (const std::string placement : {"pre", "post", "sandwich", "rezero", "residual-dual"})
      for (const bool training : {true, false}) {
        CAPTURE(norm, placement, training);
        const auto model = lively(tiny(norm, placement));
        const LeakReport report = leak_test(*model, tokens(3, 8), training);
        CHECK(report.later_token.largest == 0);
        CHECK(report.later_token.mean == 0);
        CHECK(report.other_sample.largest == 0);
        CHECK(report.other_sample.mean == 0);
        CHECK(report.later_gradient == 0);
        CHECK(report.other_gradient == 0);
        CHECK(report.own_tokens.largest > 0.01);
        CHECK(report.own_gradient > 0.01);
      }
}

TEST_CASE("batch_norm_leaks_in_training_and_nothing_outside") {
  for (const std::string norm : {"batchnorm", "batchnorm-unmasked", "powernorm", "powernorm-v"}) {
    CAPTURE(norm);
    const auto model = lively(tiny(norm));
    const LeakReport training = leak_test(*model, tokens(3, 8), true);
    CHECK(training.later_token.largest > 1e-3);
    CHECK(training.later_token.mean > 0);
    CHECK(training.later_token.mean < training.later_token.largest);
    CHECK(training.other_sample.largest > 1e-3);
    CHECK(training.later_gradient > 1e-4);
    CHECK(training.other_gradient > 1e-4);
    const LeakReport evaluation = leak_test(*model, tokens(3, 8), false);
    CHECK_FALSE(evaluation.leaks_time());
    CHECK_FALSE(evaluation.leaks_samples());
  }
}

TEST_CASE("norms_along_time_leak_later_tokens_but_no_other_samples") {
  for (const std::string norm : {"instancenorm", "groupnorm-time", "layernorm-time"})
    for (const bool training : {true, false}) {
      CAPTURE(norm, training);
      const auto model = lively(tiny(norm));
      const LeakReport report = leak_test(*model, tokens(3, 8), training);
      CHECK(report.later_token.largest > 1e-3);
      CHECK(report.later_gradient > 1e-4);
      CHECK_FALSE(report.leaks_samples());
    }
}

// Against gradients and changes taken by hand: every token's embedding is moved by a little.
TEST_CASE("the_gradient_of_a_leak_is_the_slope_of_the_output") {
  TransformerConfig config = tiny("batchnorm");
  config.vocabulary = 12;  // one token for each position of 2 x 6
  config.tied = false;
  GPT model(config);
  randomise(model, 5);
  convert(model, DType::f64);
  std::vector<int32_t> ids(12);
  for (int i = 0; i < 12; ++i) ids[i] = i;
  const Tensor input = Tensor::from(ids, {2, 6});
  const LeakReport report = leak_test(model, input, true);
  Tensor table;
  for (const NamedTensor& entry : named_tensors(model))
    if (entry.name == "token_embedding.weight") table = entry.tensor;
  // The projection that leak_test takes: of position (6 - 1) / 2 of sample 0.
  const Tensor projection = Tensor::empty({8}, DType::f64);
  kernels::fill_normal(projection, 0, 1, RandomKey{.purpose = Purpose::evaluation});
  const auto output = [&] {
    const std::vector<double> hidden = values_of(model.hidden(input, {.batch_statistics = true}));
    double sum = 0;
    for (int c = 0; c < 8; ++c) sum += hidden[2 * 8 + c] * values_of(projection)[c];
    return sum;
  };
  double square[3] = {};  // own, later, other
  for (int position = 0; position < 12; ++position)
    for (int c = 0; c < 8; ++c) {
      double& weight = table.data<double>()[position * 8 + c];
      const double before = weight, step = 1e-5;
      weight = before + step;
      const double up = output();
      weight = before - step;
      const double slope = (up - output()) / (2 * step);
      weight = before;
      square[position <= 2 ? 0 : position < 6 ? 1 : 2] += slope * slope;
    }
  CHECK(report.own_gradient == Approx(std::sqrt(square[0])).epsilon(1e-6));
  CHECK(report.later_gradient == Approx(std::sqrt(square[1])).epsilon(1e-6));
  CHECK(report.other_gradient == Approx(std::sqrt(square[2])).epsilon(1e-6));
}

TEST_CASE("the_leak_test_leaves_the_model_and_its_gradients_alone") {
  for (const std::string norm : {"batchnorm", "powernorm"}) {
    const auto model = lively(tiny(norm));
    Parameters parameters(*model);
    parameters.gradients().fill(0.25);
    const std::vector<Tensor> before = copies(*model);
    const Tensor input = tokens(2, 8), given = input.clone();
    leak_test(*model, input, true);
    CHECK(same_bits(input, given));
    const std::vector<Tensor> after = copies(*model);
    for (size_t i = 0; i < before.size(); ++i) CHECK(same_bits(before[i], after[i]));
    CHECK(values_of(parameters.gradients()) == std::vector<double>(parameters.size(), 0.25));
  }
}

TEST_CASE("the_leak_test_refuses_what_cannot_show_a_leak") {
  const auto model = lively(tiny("layernorm"));
  for (const Tensor& input : {tokens(1, 8), tokens(2, 1)})
    CHECK_THROWS_WITH(leak_test(*model, input, true), ContainsSubstring("two samples"));
}

TEST_CASE("the_leak_table_says_it_in_words") {
  const auto model = lively(tiny("batchnorm"));
  const LeakReport reports[] = {leak_test(*model, tokens(2, 8), true),
                                leak_test(*model, tokens(2, 8), false)};
  const std::string table = leak_table(reports);
  CHECK_THAT(table, ContainsSubstring("LEAKS later tokens") &&
                        ContainsSubstring("LEAKS other samples") && ContainsSubstring("no leak"));
  CHECK(leak_table({reports + 1, 1}).find("LEAKS") == std::string::npos);
}

TEST_CASE("numbers_that_are_not_finite_are_no_clean_leak_report") {
  const auto model = lively(tiny("layernorm"));
  for (const NamedTensor& entry : named_parameters(*model))
    if (entry.name == "final_norm.bias") entry.tensor.data<float>()[0] = NAN;
  const LeakReport report = leak_test(*model, tokens(2, 8), true);
  CHECK(std::isnan(report.later_token.largest));
  CHECK(report.leaks_time());
}

TEST_CASE("prefixes_give_the_teacher_forced_loss_where_nothing_leaks") {
  for (const bool lines : {false, true}) {
    const Stories stories(lines);
    for (const std::string norm : {"layernorm", "batchnorm"}) {
      CAPTURE(norm, lines);
      const auto model = lively(stories.config(norm));
      const PrefixLoss loss = prefix_evaluation(*model, *stories.corpus, 2);
      CHECK(loss.prefix == Approx(loss.teacher_forced).epsilon(1e-6));
      CHECK(loss.teacher_forced == Approx(evaluate(*model, *stories.corpus, 2)).epsilon(1e-9));
    }
    for (const std::string norm : {"instancenorm", "layernorm-time"}) {
      CAPTURE(norm, lines);
      const auto model = lively(stories.config(norm));
      const PrefixLoss loss = prefix_evaluation(*model, *stories.corpus, 2);
      CHECK(std::abs(loss.prefix - loss.teacher_forced) > 1e-3);
    }
  }
}

// Each prefix fed by hand, alone and without padding.
TEST_CASE("the_prefix_loss_is_the_mean_over_every_prefix") {
  for (const bool lines : {false, true}) {
    const Stories stories(lines);
    const auto model = lively(stories.config("instancenorm"));
    const Batch batch = stories.corpus->validation_batch(0, 1);
    const int64_t T = batch.inputs.dim(1), V = model->config().vocabulary;
    double sum = 0;
    for (int64_t i = 0; i < batch.targets.numel(); ++i) {
      const int32_t target = batch.targets.data<int32_t>()[i];
      if (target == -1) continue;
      const int32_t* row = batch.inputs.data<int32_t>() + i / T * T;
      const int64_t t = i % T;
      const Tensor prefix = Tensor::from(std::vector<int32_t>(row, row + t + 1), {1, t + 1});
      const std::vector<double> scores = values_of(model->logits(prefix));
      double total = 0;
      for (int64_t v = 0; v < V; ++v) total += std::exp(scores[t * V + v]);
      sum += std::log(total) - scores[t * V + target];
    }
    const PrefixLoss loss = prefix_evaluation(*model, *stories.corpus, 1);
    CHECK(loss.prefix == Approx(sum / static_cast<double>(batch.tokens)).epsilon(1e-5));
  }
}

TEST_CASE("randomising_moves_every_parameter_off_its_start") {
  TransformerConfig config = tiny("layernorm", "rezero");
  config.bias = true;
  for (const std::string placement : {"rezero", "pre"}) {
    config.placement = placement;
    GPT fresh(config);
    const auto model = lively(config);
    const std::vector<NamedTensor> before = named_parameters(fresh);
    const std::vector<NamedTensor> after = named_parameters(*model);
    for (size_t i = 0; i < before.size(); ++i) {
      CAPTURE(before[i].name);
      const std::vector<double> from = values_of(before[i].tensor), to = values_of(after[i].tensor);
      for (size_t k = 0; k < from.size(); ++k) CHECK(from[k] != to[k]);
    }
  }
}
