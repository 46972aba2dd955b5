// The training loop: it learns, it repeats itself bit for bit, and it loses nothing.
#include "train/trainer.h"

#include <cmath>
#include <fstream>
#include <map>

#include "core/threads.h"
#include "data/stories.h"
#include "layers/batch_norms.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "train/diagnosis.h"
#include "train/evaluation.h"
#include "train/generation.h"
#include "train/language_model.h"
#include "train/model_config.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

// A small run on stories, with everything that has a random part.
struct Run {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<TextCorpus> corpus;
  TransformerConfig config{.context = 16, .layers = 2, .heads = 2, .channels = 16, .dropout = 0.1};
  TrainOptions options;

  explicit Run(const fs::path& out = {}) {
    const Text text(generate_stories(1, 20000), "stories");
    tokenizer = make_tokenizer("character", text.view());
    corpus = std::make_unique<TextCorpus>(text, *tokenizer,
                                          BatchOptions{.rows = 4, .context = 16, .seed = 1});
    config.vocabulary = tokenizer->vocabulary_size();
    options.schedule.steps = 20;
    options.schedule.warmup = 3;
    options.eval_every = 5;
    options.eval_batches = 2;
    options.out = out;
    options.description = {to_json(config), tokenizer->to_json(), "{}", 0};
  }

  /// Losses by step, from a model made anew; resumed where `resume`.
  std::map<int64_t, double> train(int64_t stop_after = 0, bool resume = false,
                                  TrainResult* result = nullptr) {
    GPT model(config, 3);
    Trainer trainer(model, *corpus, options);
    if (resume) trainer.resume();
    std::map<int64_t, double> losses;
    TrainEvents events;
    events.on_step = [&](int64_t step, const StepResult& s, double) { losses[step] = s.loss; };
    const TrainResult r = trainer.run(stop_after, events);
    if (result) *result = r;
    return losses;
  }
};

}  // namespace

TEST_CASE("training_lowers_the_loss") {
  Run run;
  run.options.schedule = {.name = "constant", .lr = 1e-2, .min_lr = 0, .warmup = 0, .steps = 60};
  run.options.eval_every = 0;
  const auto losses = run.train();
  CHECK(losses.at(1) > 3);
  CHECK(losses.at(60) < losses.at(1) - 0.8);
}

TEST_CASE("evaluating_more_often_changes_no_training_loss") {
  Run often, never;
  often.options.eval_every = 1;
  never.options.eval_every = 0;
  CHECK(often.train() == never.train());
}

TEST_CASE("a_stopped_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit") {
  TemporaryFolder folder;
  Run whole(folder / "whole"), parts(folder / "parts");
  TrainResult whole_result, parts_result;
  auto losses = whole.train(0, false, &whole_result);
  auto first = parts.train(7);
  auto second = parts.train(13, true);
  auto third = parts.train(0, true, &parts_result);
  CHECK(first.size() == 7);
  CHECK(second.begin()->first == 8);
  first.merge(second);
  first.merge(third);
  CHECK(first == losses);
  CHECK(whole_result.validation_loss == parts_result.validation_loss);
  CHECK(whole_result.best_loss == parts_result.best_loss);
  CHECK(content(folder / "whole" / "model.safetensors") ==
        content(folder / "parts" / "model.safetensors"));

  const auto a = read_metrics(folder / "whole" / "metrics.jsonl");
  const auto b = read_metrics(folder / "parts" / "metrics.jsonl");
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].step == b[i].step);
    CHECK(a[i].train_loss == b[i].train_loss);
    CHECK(a[i].val_loss == b[i].val_loss);
    CHECK(a[i].lr == b[i].lr);
    CHECK(a[i].grad_norm == b[i].grad_norm);
  }
}

TEST_CASE("power_norm_resumes_from_its_files_on_either_side_of_its_warm_up") {
  register_norm("powernorm-of-5", [](int64_t channels) {
    auto norm = std::make_unique<PowerNorm>(channels);
    norm->warm_up = 5;
    return norm;
  });
  const TemporaryFolder folder;
  const auto run_in = [&](const std::string& name) {
    Run run(folder / name);
    run.config.norm = "powernorm-of-5";
    run.options.schedule.steps = 10;
    run.options.description.config = to_json(run.config);
    return run;
  };
  const auto losses = run_in("whole").train();
  for (const int64_t stop : {3, 5, 6, 8}) {
    CAPTURE(stop);
    const std::string name = std::to_string(stop);
    auto parts = run_in(name).train(stop);
    parts.merge(run_in(name).train(0, true));
    CHECK(parts == losses);
    for (const char* file : {"model.safetensors", "training-10.safetensors"})
      CHECK(content(folder / name / file) == content(folder / "whole" / file));
  }
}

TEST_CASE("inspecting_changes_no_training_loss_and_a_resumed_run_inspects_the_same") {
  TemporaryFolder folder;
  for (const std::string norm : {"layernorm", "batchnorm", "powernorm"}) {
    CAPTURE(norm);
    Run plain, whole(folder / (norm + "whole")), parts(folder / (norm + "parts"));
    for (Run* run : {&plain, &whole, &parts}) {
      run->config.norm = norm;
      run->options.schedule.steps = 8;
    }
    whole.options.inspect_every = parts.options.inspect_every = 3;
    const auto losses = whole.train();
    CHECK(losses == plain.train());
    auto first = parts.train(4);
    first.merge(parts.train(0, true));
    CHECK(first == losses);
    CHECK(content(whole.options.out / "model.safetensors") ==
          content(parts.options.out / "model.safetensors"));
    std::vector<int64_t> steps;
    std::string profiles[2];
    for (Run* run : {&whole, &parts})
      for (Metrics& at : read_metrics(run->options.out / "metrics.jsonl")) {
        if (at.stream_rms.empty()) continue;
        if (run == &whole) steps.push_back(at.step);
        profiles[run == &parts] += to_json(at) + "\n";
      }
    CHECK(steps == std::vector<int64_t>{0, 3, 6, 8});
    CHECK(profiles[0] == profiles[1]);
    CHECK(fs::exists(whole.options.out / "profile.svg"));
  }
}

TEST_CASE("one_and_two_threads_give_the_same_losses") {
  const int before = num_threads();
  Run run;
  set_num_threads(1);
  const auto one = run.train();
  set_num_threads(2);
  const auto two = run.train();
  set_num_threads(before);
  CHECK(one == two);
}

TEST_CASE("micro_batches_give_the_gradient_of_one_large_batch") {
  Run run;
  run.config.dropout = 0;
  const auto first_norm = [&](int64_t rows, int64_t accumulate) {
    const Text text(generate_stories(1, 20000), "stories");
    const TextCorpus corpus(text, *run.tokenizer, {.rows = rows, .context = 16, .seed = 1});
    GPT model(run.config, 3);
    Parameters parameters(model);
    AdamW optimizer(parameters);
    return training_step(model, parameters, optimizer, corpus, 0, accumulate, 0, 0, 1);
  };
  const StepResult whole = first_norm(12, 1), parts = first_norm(4, 3);
  CHECK(whole.tokens == parts.tokens);
  CHECK(parts.loss == Approx(whole.loss).epsilon(1e-6));
  CHECK(parts.grad_norm == Approx(whole.grad_norm).epsilon(1e-5));
}

TEST_CASE("a_loss_that_is_not_finite_stops_the_run_and_names_step_and_operation") {
  TemporaryFolder folder;
  Run run(folder / "out");
  GPT model(run.config, 3);
  Trainer trainer(model, *run.corpus, run.options);
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult&, double) {
    if (step != 7) return;
    for (const NamedTensor& entry : named_parameters(model))
      if (entry.name == "blocks.1.ffn.up.weight") entry.tensor.fill(3e38);
  };
  CHECK_THROWS_WITH(trainer.run(0, events), ContainsSubstring("step 8") &&
                                                ContainsSubstring("operation whose output is not "
                                                                  "finite is '"));
  CHECK(read_model_file(folder / "out").step == 5);  // the last good checkpoint
  Run again(folder / "out");
  CHECK(again.train(0, true).size() == 15);
}

TEST_CASE("weights_that_are_not_finite_are_never_saved") {
  TemporaryFolder folder;
  Run run(folder / "out");
  GPT model(run.config, 3);
  Trainer trainer(model, *run.corpus, run.options);
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult&, double) {
    if (step != 10) return;  // an evaluation and a checkpoint are due right after
    for (const NamedTensor& entry : named_parameters(model))
      if (entry.name == "final_norm.bias") entry.tensor.data<float>()[0] = NAN;
  };
  CHECK_THROWS_WITH(trainer.run(0, events), ContainsSubstring("step 10"));
  CHECK(read_model_file(folder / "out").step == 5);
}

TEST_CASE("a_gradient_that_is_not_finite_leaves_the_parameters_as_they_are") {
  Run run;
  GPT model(run.config, 3);
  Parameters parameters(model);
  AdamW optimizer(parameters);
  parameters.zero_gradients();
  parameters.gradients().data<float>()[3] = NAN;
  const auto before = parameters.values().to_vector<float>();
  CHECK(std::isnan(optimizer.step(0.1, 1.0)));
  CHECK(parameters.values().to_vector<float>() == before);
  CHECK(optimizer.steps() == 0);
}

TEST_CASE("a_warm_training_loop_asks_the_system_for_no_memory") {
  Run run;
  run.options.eval_every = 0;
  GPT model(run.config, 3);
  Trainer trainer(model, *run.corpus, run.options);
  size_t warm = 0;
  TrainEvents events;
  events.on_step = [&](int64_t step, const StepResult&, double) {
    const size_t requests = memory_stats().system_requests;
    if (step == 3) warm = requests;
    if (step > 3) CHECK(requests == warm);
  };
  trainer.run(0, events);
}

TEST_CASE("an_evaluation_at_the_end_alone_is_in_the_metrics_too") {
  TemporaryFolder folder;
  Run run(folder / "out");
  run.options.eval_every = 0;
  TrainResult result;
  run.train(0, false, &result);
  const auto metrics = read_metrics(folder / "out" / "metrics.jsonl");
  CHECK(metrics.back().val_loss == result.validation_loss);
  CHECK(result.best_step == 20);
  CHECK(fs::exists(folder / "out" / "best.safetensors"));
}

TEST_CASE("a_weight_that_is_not_finite_is_named") {
  Run run;
  GPT model(run.config, 3);
  for (const NamedTensor& entry : named_parameters(model))
    if (entry.name == "final_norm.weight") entry.tensor.data<float>()[0] = NAN;
  const Batch batch = run.corpus->training_batch(0);
  const auto loss = [&] { return model.loss(batch.inputs, batch.targets); };
  CHECK_THAT(first_operation_not_finite(model, loss, {}),
             ContainsSubstring("'final_norm.weight' itself"));
}

TEST_CASE("patience_stops_a_run_that_gains_nothing") {
  Run run;
  run.options.schedule = {.name = "constant", .lr = 0, .min_lr = 0, .warmup = 0, .steps = 100};
  run.options.eval_every = 2;
  run.options.patience = 3;
  TrainResult result;
  CHECK(run.train(0, false, &result).size() == 6);
  CHECK(result.end == TrainResult::End::no_gain);
}

TEST_CASE("should_stop_saves_and_ends_the_run") {
  TemporaryFolder folder;
  Run run(folder / "out");
  GPT model(run.config, 3);
  Trainer trainer(model, *run.corpus, run.options);
  TrainEvents events;
  events.should_stop = [&] { return trainer.step() == 4; };
  const TrainResult result = trainer.run(0, events);
  CHECK(result.end == TrainResult::End::stopped);
  CHECK(std::isnan(result.validation_loss));  // who is in a hurry is not kept waiting for it
  CHECK(result.steps == 4);
  CHECK(read_model_file(folder / "out").step == 4);
}

TEST_CASE("an_evaluation_that_was_stopped_counts_for_nothing_and_is_made_when_the_run_goes_on") {
  const TemporaryFolder folder;
  Run whole(folder / "whole");
  TrainResult expected;
  whole.train(0, false, &expected);
  const auto losses = [](const fs::path& out) {
    std::map<int64_t, double> result;
    for (const Metrics& at : read_metrics(out / "metrics.jsonl"))
      if (at.val_loss) CHECK(result.emplace(at.step, *at.val_loss).second);
    return result;
  };
  for (const int64_t at : {0, 10, 20}) {  // the first evaluation, one in between, the last
    Run parts(folder / std::to_string(at));
    GPT model(parts.config, 3);
    Trainer trainer(model, *parts.corpus, parts.options);
    int asked = 0;
    TrainEvents events;
    events.should_stop = [&] { return trainer.step() == at && ++asked == 2; };
    const TrainResult stopped = trainer.run(0, events);
    CHECK(asked == 2);  // before each of two batches
    CHECK((stopped.end == TrainResult::End::stopped && std::isnan(stopped.validation_loss)));
    CHECK(!losses(parts.options.out).contains(at));
    TrainResult resumed;
    parts.train(0, true, &resumed);
    CHECK(resumed.validation_loss == expected.validation_loss);
    CHECK(losses(parts.options.out) == losses(folder / "whole"));
    for (const char* file : {"model.safetensors", "best.safetensors", "training-20.safetensors"})
      CHECK(content(parts.options.out / file) == content(folder / "whole" / file));
  }
}

TEST_CASE("zero_steps_leave_an_evaluated_and_saved_model") {
  TemporaryFolder folder;
  Run run(folder / "out");
  run.options.schedule.steps = 0;
  TrainResult result;
  CHECK(run.train(0, false, &result).empty());
  CHECK(result.steps == 0);
  CHECK(std::isfinite(result.validation_loss));
  CHECK(has_checkpoint(folder / "out"));
}

TEST_CASE("a_checkpoint_alone_generates_the_same_text") {
  TemporaryFolder folder;
  Run run(folder / "out");
  run.train();
  const LanguageModel one = load_language_model(folder / "out");
  const LanguageModel two = load_language_model(folder / "out" / "model.safetensors");
  const auto text = [&](const LanguageModel& m, double temperature, uint64_t seed) {
    return generate_text(*m.model, *m.tokenizer, "The ", 50, {.temperature = temperature}, seed);
  };
  CHECK(text(one, 1, 1) == text(two, 1, 1));
  CHECK(text(one, 1, 1) != text(one, 1, 2));
  CHECK(text(one, 0, 1) == text(one, 0, 2));  // greedy draws nothing
  CHECK(text(one, 1, 1).size() == 50);        // beyond the context of 16: the window slides
}

TEST_CASE("greedy_generation_takes_the_most_probable_token") {
  Run run;
  GPT model(run.config, 3);
  initialize(model, 4, [](const std::string&) { return 0.3; });
  const std::vector<int32_t> prompt{1, 2, 3};
  std::vector<int32_t> generated;
  generate_tokens(model, prompt, 10, {.temperature = 0}, 1, [&](int32_t token) {
    generated.push_back(token);
    return true;
  });
  std::vector<int32_t> history = prompt;
  for (int32_t token : generated) {
    const Tensor scores =
        model.logits(Tensor::from(history, {1, static_cast<int64_t>(history.size())}));
    const float* last = scores.data<float>() + (history.size() - 1) * run.config.vocabulary;
    CHECK(token == std::max_element(last, last + run.config.vocabulary) - last);
    history.push_back(token);
  }
}

TEST_CASE("the_doctor_finds_a_healthy_model_healthy_and_an_unreached_parameter") {
  Run run;
  GPT model(run.config, 3);
  const auto healthy = examine(model, *run.corpus);
  CHECK(health_report(healthy).healthy);
  for (const ParameterHealth& p : healthy) CHECK((p.reached && p.moved()));
  auto sick = healthy;
  sick[2].reached = false;
  const HealthReport report = health_report(sick);
  CHECK(!report.healthy);
  CHECK_THAT(report.table, ContainsSubstring("NOT REACHED"));
}

TEST_CASE("model_configurations_survive_json_and_bad_ones_are_named") {
  const TransformerConfig config{
      .vocabulary = 7, .norm = "rmsnorm", .rotary_base = 500000.5, .tied = false};
  CHECK(config_from_json(to_json(config)) == config);
  CHECK_THROWS_WITH(config_from_json("[1]"), ContainsSubstring("not a JSON object"));
  CHECK_THROWS_WITH(config_from_json(R"({"layer": 3})"), ContainsSubstring("'layer'"));
  CHECK_THROWS_WITH(config_from_json(R"({"layers": "3"})"), ContainsSubstring("'layers'"));
}
