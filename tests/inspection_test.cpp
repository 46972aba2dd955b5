// Looking inside a model: how large things are by layer, how far statistics lie apart, what half
// precision does; and that looking changes nothing.
#include <cmath>

#include "layers/batch_norms.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/lively_model.h"
#include "tests/temporary_folder.h"
#include "train/batch_statistics.h"
#include "train/evaluation.h"
#include "train/files.h"
#include "train/plot.h"
#include "train/profile.h"

using namespace tapeformer;

namespace {

// The running norms in order of the model.
std::vector<RunningNorm*> running_norms(GPT& model) {
  std::vector<RunningNorm*> result;
  for (const NamedModule& part : named_modules(model))
    if (auto* norm = dynamic_cast<RunningNorm*>(part.module)) result.push_back(norm);
  return result;
}

double value_of(const std::vector<NamedValue>& values, const std::string& name) {
  for (const NamedValue& entry : values)
    if (entry.name == name) return entry.value;
  FAIL("no value " << name);
  return 0;
}

}  // namespace

TEST_CASE("the_profile_holds_the_size_of_the_stream_and_of_every_gradient") {
  const Stories stories;
  TransformerConfig config = stories.config("layernorm");
  config.placement = "post";  // every block ends with a norm
  GPT model(config);
  const Batch batch = stories.corpus->training_batch(0);
  const Profile look = profile(model, batch);
  REQUIRE(look.stream_rms.size() == 3);
  CHECK(look.stream_rms[1] == Approx(1).epsilon(1e-2));
  CHECK(look.stream_rms[2] == Approx(1).epsilon(1e-2));
  const std::vector<NamedTensor> parameters = named_parameters(model);
  REQUIRE(look.gradient_norms.size() == parameters.size());
  for (const NamedTensor& entry : parameters) CHECK(!gradient(entry.tensor).defined());
  {
    Tape tape;
    tape.backward(model.loss(batch.inputs, batch.targets));
  }
  for (const NamedTensor& entry : parameters) {
    double sum = 0;
    for (const double value : values_of(gradient(entry.tensor))) sum += value * value;
    CHECK(value_of(look.gradient_norms, entry.name) == Approx(std::sqrt(sum)));
    CHECK(sum > 0);
  }
  CHECK(look.tid.empty());
  const Profile again = profile(model, batch);  // over gradients that are written
  for (size_t i = 0; i < parameters.size(); ++i)
    CHECK(again.gradient_norms[i].value == look.gradient_norms[i].value);
}

TEST_CASE("the_root_mean_square_of_the_stream_is_over_all_tokens_but_padding") {
  for (const bool lines : {false, true}) {
    const Stories stories(lines);
    GPT model(stories.config("layernorm"));
    const Batch batch = stories.corpus->training_batch(0);
    std::vector<double> tokens, positions;
    for (const NamedTensor& entry : named_tensors(model)) {
      if (entry.name == "token_embedding.weight") tokens = values_of(entry.tensor);
      if (entry.name == "position_embedding.weight") positions = values_of(entry.tensor);
    }
    const int64_t T = batch.inputs.dim(1);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < batch.inputs.numel(); ++i) {
      if (lines && i % T >= batch.lengths.data<int32_t>()[i / T]) continue;
      for (int64_t c = 0; c < 8; ++c, ++count)
        sum +=
            std::pow(tokens[batch.inputs.data<int32_t>()[i] * 8 + c] + positions[i % T * 8 + c], 2);
    }
    CHECK((count < static_cast<double>(batch.inputs.numel() * 8)) == lines);
    CHECK(profile(model, batch).stream_rms[0] == Approx(std::sqrt(sum / count)));
  }
}

TEST_CASE("a_profile_changes_no_parameter_and_no_buffer") {
  const Stories stories;
  for (const std::string norm : {"layernorm", "batchnorm", "powernorm"}) {
    CAPTURE(norm);
    TransformerConfig config = stories.config(norm);
    config.dropout = 0.5;
    const auto model = lively(config);
    for (RunningNorm* running : running_norms(*model))
      if (auto* power = dynamic_cast<PowerNorm*>(running)) power->warm_up = 0;
    const std::vector<Tensor> before = copies(*model);
    const Profile look = profile(*model, stories.corpus->training_batch(0));
    const std::vector<Tensor> after = copies(*model);
    for (size_t i = 0; i < before.size(); ++i) CHECK(same_bits(before[i], after[i]));
    CHECK(look.tid.size() == (norm == "layernorm" ? 0 : 5));
  }
}

TEST_CASE("the_plot_of_profiles_has_a_panel_for_each_kind_of_weight") {
  const TemporaryFolder folder;
  write_profile(folder.path, {{.step = 1, .train_loss = 2}});
  CHECK(folder.files() == 0);  // nothing was inspected
  std::vector<Metrics> metrics;
  for (int64_t step = 0; step < 20; ++step)
    metrics.push_back({.step = step,
                       .stream_rms = {1, 2, NAN},
                       .gradient_norms = {{"blocks.0.norm1.weight", 1},
                                          {"blocks.0.ffn.up.weight", 2},
                                          {"blocks.1.norm1.weight", 3},
                                          {"blocks.1.ffn.up.weight", 4},
                                          {"final_norm.weight", 5}}});
  const auto drawn = [&] {
    write_profile(folder.path, metrics);
    return read_file(folder / "profile.svg");
  };
  const auto panels = [](const std::string& svg) {
    std::vector<std::string> titles;
    const std::string begin = "<text class=\"panel\"";
    for (size_t at = svg.find(begin); at != svg.npos; at = svg.find(begin, at + 1)) {
      const size_t text = svg.find('>', at) + 1;
      titles.push_back(svg.substr(text, svg.find('<', text) - text));
    }
    return titles;
  };
  std::vector<std::string> titles{"Residual stream", "Gradient of norm1.weight",
                                  "Gradient of ffn.up.weight", "Gradients outside the blocks"};
  CHECK(panels(drawn()) == titles);
  for (const char* step : {"step 0", "step 4", "step 8", "step 11", "step 15", "step 19"})
    CHECK_THAT(drawn(), ContainsSubstring(">" + std::string(step) + "<"));
  CHECK_THAT(drawn(), !ContainsSubstring(">step 1<") && ContainsSubstring(">final_norm.weight<"));
  metrics[3].tid = {{"blocks.0.norm1", 0.5}};
  titles.push_back("Running and batch statistics (TID)");
  CHECK(panels(drawn()) == titles);
  metrics = {
      {.step = 0, .stream_rms = {1}, .gradient_norms = {{"blocks.x.w", 1}, {"blocks.7", 2}}}};
  CHECK(panels(drawn()).size() == 2);  // such names are outside the blocks
}

TEST_CASE("the_distance_of_statistics_follows_its_formula") {
  const Stories stories;
  const Batch batch = stories.corpus->training_batch(0);
  for (const std::string norm : {"batchnorm", "powernorm"}) {
    const auto model = lively(stories.config(norm));
    for (RunningNorm* running : running_norms(*model)) {
      running->running_variance.fill(4);
      if (running->running_mean.defined()) running->running_mean.fill(0.5);
    }
    const std::vector<NamedValue> found = statistics_distance(*model, batch);
    const std::vector<RunningNorm*> norms = running_norms(*model);
    REQUIRE(found.size() == norms.size());
    CHECK(found[0].name == "blocks.0.norm1");
    CHECK(found.back().name == "final_norm");
    // The first norm sees the embedding, whose moments are taken here by hand.
    Tensor x;
    model->hidden(batch.inputs, {.observe_stream = [&](int64_t blocks, const Tensor& stream) {
                    if (blocks == 0) x = stream.clone();
                  }});
    const std::vector<double> values = values_of(x);
    const auto n = static_cast<double>(values.size() / 8);
    double expected = 0;
    for (int c = 0; c < 8; ++c) {
      double mean = 0, variance = 0, square = 0;
      for (size_t i = c; i < values.size(); i += 8) mean += values[i] / n;
      for (size_t i = c; i < values.size(); i += 8) {
        variance += (values[i] - mean) * (values[i] - mean) / n;
        square += values[i] * values[i] / n;
      }
      if (norm == "batchnorm")
        expected += std::abs(0.5 - mean) / std::sqrt(variance + 1e-5) / 8;
      else
        expected +=
            std::abs(std::sqrt(4 + 1e-5) - std::sqrt(square + 1e-5)) / std::sqrt(square + 1e-5) / 8;
    }
    CHECK(found[0].value == Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("recalibration_leaves_the_plain_mean_over_the_batches") {
  const Stories stories;
  const auto model = lively(stories.config("batchnorm"));
  for (RunningNorm* norm : running_norms(*model)) norm->running_mean.fill(77);
  std::vector<double> means(8), variances(8);
  for (int64_t k = 0; k < 3; ++k) {
    statistics_distance(*model, stories.corpus->training_batch(k));
    const Moments& moments = running_norms(*model)[2]->batch;
    const double unbiased = moments.rows / (moments.rows - 1.0);
    for (int c = 0; c < 8; ++c) {
      means[c] += values_of(moments.mean)[c] / 3;
      variances[c] += values_of(moments.variance)[c] * unbiased / 3;
    }
  }
  recalibrate(*model, *stories.corpus, 3);
  CHECK(largest_error(running_norms(*model)[2]->running_mean, means) < 1e-6);
  CHECK(largest_error(running_norms(*model)[2]->running_variance, variances) < 1e-6);
}

TEST_CASE("recalibration_on_one_batch_brings_the_distance_to_zero") {
  const Stories stories;
  for (const std::string norm : {"batchnorm", "powernorm"}) {
    const auto model = lively(stories.config(norm));
    for (const NamedValue& entry : statistics_distance(*model, stories.corpus->training_batch(0)))
      CHECK(entry.value > 0.01);
    recalibrate(*model, *stories.corpus, 1);
    for (const NamedValue& entry : statistics_distance(*model, stories.corpus->training_batch(0)))
      CHECK(entry.value < 1e-6);
  }
}

TEST_CASE("statistics_are_compared_without_touching_the_models_own") {
  const Stories stories;
  const auto model = lively(stories.config("batchnorm"));
  const std::vector<Tensor> before = copies(*model);
  const StatisticsLosses losses = compare_statistics(*model, *stories.corpus, 4, 3);
  const std::vector<Tensor> after = copies(*model);
  for (size_t i = 0; i < before.size(); ++i) CHECK(same_bits(before[i], after[i]));
  CHECK(losses.running == evaluate(*model, *stories.corpus, 3));
  CHECK(losses.batch == evaluate(*model, *stories.corpus, 3, true));
  CHECK(losses.batch != losses.running);
  recalibrate(*model, *stories.corpus, 4);
  CHECK(losses.recalibrated == evaluate(*model, *stories.corpus, 3));
  CHECK(losses.recalibrated != losses.running);
}

TEST_CASE("without_running_statistics_there_is_nothing_to_recalibrate") {
  const Stories stories;
  const auto model = lively(stories.config("rmsnorm"));
  CHECK_FALSE(has_running_statistics(*model));
  CHECK(statistics_distance(*model, stories.corpus->training_batch(0)).empty());
  CHECK_THROWS_WITH(recalibrate(*model, *stories.corpus, 1), ContainsSubstring("'rmsnorm'"));
  const auto batch_norm = lively(stories.config("batchnorm"));
  CHECK_THROWS_WITH(recalibrate(*batch_norm, *stories.corpus, 0), ContainsSubstring("got 0"));
}

TEST_CASE("a_model_under_float16_norms_keeps_its_loss_until_a_sum_overflows") {
  const Stories stories;
  for (const std::string norm : {"layernorm", "rmsnorm"}) {
    const auto model = lively(stories.config(norm));
    const auto losses = evaluate_in_float16(*model, *stories.corpus, 2);
    REQUIRE(losses.size() == 4);
    CHECK(losses[0].norm == norm);
    CHECK(losses[0].loss == evaluate(*model, *stories.corpus, 2));
    for (size_t i = 1; i < 4; ++i) {
      CHECK(losses[i].norm.starts_with(norm + "-float16"));
      CHECK(losses[i].loss == Approx(losses[0].loss).epsilon(1e-2));
      CHECK(losses[i].loss != losses[0].loss);
      CHECK(losses[i].overflows == 0);
    }
    for (const NamedTensor& entry : named_parameters(*model))  // a stream of RMS 300 and more
      if (entry.name == "position_embedding.weight")
        entry.tensor.copy_from(entry.tensor.detach() * 1000.0);
    const auto large = evaluate_in_float16(*model, *stories.corpus, 2);
    CHECK(large[1].overflows > 0);
    CHECK(std::abs(large[1].loss - large[0].loss) > 0.01);
    CHECK(large[2].overflows == 0);
    CHECK(std::abs(large[2].loss - large[0].loss) > 0.01);
    CHECK(large[3].loss == Approx(large[0].loss).epsilon(1e-2));
    CHECK(large[3].overflows == 0);
  }
  const auto other = lively(stories.config("batchnorm"));
  CHECK_THROWS_WITH(evaluate_in_float16(*other, *stories.corpus, 1),
                    ContainsSubstring("not of 'batchnorm'"));
}
