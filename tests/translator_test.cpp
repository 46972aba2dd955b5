// Training a translator: accumulation by tokens, label smoothing without padding, averaging,
// resuming, time limits, and its file.
#include "train/translator.h"

#include "data/languages.h"
#include "tests/catch.h"
#include "tests/compare.h"
#include "tests/temporary_folder.h"
#include "train/metrics.h"
#include "train/model_config.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

SentenceCoders small_coders() { return learn_coders(generate_pairs(1, 200), 150, false); }

// A small model, its task and its text.
struct Study {
  SentenceCoders coders = small_coders();
  std::vector<SentencePair> text = generate_pairs(3, 12);
  PairCorpus training{
      generate_pairs(2, 120), coders.source, coders.target, {.batch_tokens = 300, .longest = 60}};
  PairCorpus validation{text, coders.source, coders.target, {.batch_tokens = 300, .longest = 60}};
  TransformerConfig config{.vocabulary = coders.target.vocabulary(),
                           .context = 60,
                           .layers = 1,
                           .heads = 2,
                           .channels = 16,
                           .position = "sinusoidal",
                           .dropout = 0.1,
                           .encoder_layers = 1};

  TrainOptions options(const fs::path& out, int64_t steps) const {
    TrainOptions options;
    options.schedule = {.name = "invsqrt", .lr = 3e-3, .warmup = 4, .steps = steps};
    options.eval_every = 3;
    options.out = out;
    options.description = {to_json(config), to_json(coders), "{}"};
    return options;
  }
};

std::vector<Tensor> trained(Study& study, const TrainOptions& options, int64_t stop_after,
                            bool resume = false) {
  Seq2Seq model(study.config, 1);
  TranslationTask task(model, study.coders, study.training, study.validation, study.text,
                       {.accumulate = 2});
  Trainer trainer(task, options);
  if (resume) trainer.resume();
  trainer.run(stop_after, {});
  std::vector<Tensor> weights;
  for (const NamedTensor& entry : named_parameters(model)) weights.push_back(entry.tensor.clone());
  return weights;
}

}  // namespace

TEST_CASE("micro_batches_of_11_and_101_tokens_give_the_gradient_of_one_batch") {
  // Two "batches" of rows of one corpus, and the batch of all of them.
  std::vector<SentencePair> pairs{{"a", std::string(9, 'b')}};  // 9 bytes, a space and the end: 11
  pairs.push_back({"cd", std::string(49, 'e')});                // 51
  pairs.push_back({"fg", std::string(48, 'h')});                // 50
  const SentenceCoder bytes(std::make_shared<ByteTokenizer>(), false);
  const auto batch_of = [&](size_t begin, size_t end) {
    return PairCorpus({pairs.begin() + begin, pairs.begin() + end}, bytes, bytes,
                      {.batch_tokens = 1000, .longest = 60})
        .ordered_batch(0);
  };
  const PairBatch one = batch_of(0, 1), two = batch_of(1, 3), all = batch_of(0, 3);
  REQUIRE(one.tokens == 11);
  REQUIRE(two.tokens == 101);
  REQUIRE(all.tokens == 112);
  TransformerConfig config{.vocabulary = 257,
                           .context = 60,
                           .layers = 1,
                           .heads = 2,
                           .channels = 8,
                           .position = "sinusoidal"};
  Seq2Seq model(config, 1);
  convert(model, DType::f64);
  Parameters parameters(model);
  AdamW optimizer(parameters);
  const auto micro = [&](const PairBatch& batch) {
    return MicroBatch{
        batch.tokens, [&model, batch] {
          return model.loss(
              batch.source.ids, batch.inputs, batch.targets,
              {.training = true, .lengths = batch.lengths, .memory_lengths = batch.source.lengths},
              0.1);
        }};
  };
  const auto step = [&](const std::vector<MicroBatch>& batches) {
    const StepResult result = training_step(model, parameters, optimizer, batches, 0, 0, 0, 1);
    return std::pair(result, parameters.gradients().clone());
  };
  const auto [whole, expected] = step({micro(all)});
  const auto [parts, got] = step({micro(one), micro(two)});
  CHECK(parts.tokens == 112);
  CHECK(parts.loss == Approx(whole.loss).epsilon(1e-12));
  CHECK(parts.grad_norm == Approx(whole.grad_norm).epsilon(1e-9));
  double worst = 0;
  for (size_t i = 0; i < values_of(got).size(); ++i)
    worst = std::max(worst, std::abs(values_of(got)[i] - values_of(expected)[i]));
  CHECK(worst < 1e-12);
}

TEST_CASE("smoothed_labels_leave_padding_out") {
  Study study;
  Seq2Seq model(study.config, 1);
  convert(model, DType::f64);
  const PairBatch batch = study.validation.ordered_batch(0);
  const Context context{.lengths = batch.lengths, .memory_lengths = batch.source.lengths};
  const Tensor logits = model.logits(batch.source.ids, batch.inputs, context);
  const int64_t V = logits.dim(2), T = logits.dim(1);
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t row = 0; row < batch.targets.numel(); ++row) {
    const int32_t target = batch.targets.data<int32_t>()[row];
    if (row % T >= batch.lengths.data<int32_t>()[row / T]) continue;
    const double* const x = logits.data<double>() + row * V;
    double total = 0, mean = 0;
    for (int64_t v = 0; v < V; ++v) total += std::exp(x[v]);
    for (int64_t v = 0; v < V; ++v) mean += (std::log(total) - x[v]) / static_cast<double>(V);
    sum += 0.9 * (std::log(total) - x[target]) + 0.1 * mean;
    ++tokens;
  }
  CHECK(tokens == batch.tokens);
  CHECK(model.loss(batch.source.ids, batch.inputs, batch.targets, context, 0.1).item() ==
        Approx(sum / static_cast<double>(tokens)).epsilon(1e-9));
}

TEST_CASE("a_translators_run_resumes_with_the_same_bits") {
  const TemporaryFolder folder;
  Study study;
  const auto whole = trained(study, study.options(folder / "a", 8), 0);
  trained(study, study.options(folder / "b", 8), 5);
  const auto resumed = trained(study, study.options(folder / "b", 8), 0, true);
  REQUIRE(whole.size() == resumed.size());
  for (size_t i = 0; i < whole.size(); ++i) CHECK(same_bits(whole[i], resumed[i]));
  const auto metrics = read_metrics(folder / "a" / "metrics.jsonl");
  size_t evaluations = 0;
  for (const Metrics& at : metrics) evaluations += at.val_bleu.has_value();
  CHECK(evaluations == 4);  // after 0, 3, 6 and 8 steps
  CHECK(fs::exists(folder / "a" / "curves.svg"));
}

TEST_CASE("the_mean_of_models_is_the_mean_of_their_weights") {
  const TemporaryFolder folder;
  Study study;
  Seq2Seq one(study.config, 1), two(study.config, 2), mean(study.config, 3);
  save_model(folder / "1", {to_json(study.config), to_json(study.coders), "{}"}, one);
  save_model(folder / "2", {to_json(study.config), to_json(study.coders), "{}"}, two);
  load_average({folder / "1", folder / "2"}, mean);
  const auto a = named_parameters(one), b = named_parameters(two), c = named_parameters(mean);
  for (size_t i = 0; i < a.size(); ++i)
    for (int64_t j = 0; j < a[i].tensor.numel(); ++j)
      REQUIRE(
          c[i].tensor.data<float>()[j] ==
          Approx((a[i].tensor.data<float>()[j] + b[i].tensor.data<float>()[j]) / 2).margin(1e-7));
}

TEST_CASE("averaging_keeps_the_last_evaluations_and_the_models_own_weights") {
  const TemporaryFolder folder;
  Study study;
  TrainOptions options = study.options(folder / "run", 9);
  options.average = 2;
  const auto own = trained(study, options, 0);
  CHECK(fs::exists(folder / "run" / "recent-0.safetensors"));
  CHECK(fs::exists(folder / "run" / "recent-1.safetensors"));
  CHECK(!fs::exists(folder / "run" / "recent-2.safetensors"));
  CHECK(read_model_file(folder / "run" / "recent-0.safetensors").step == 9);
  CHECK(read_model_file(folder / "run" / "recent-1.safetensors").step == 6);
  options.average = 0;
  options.out = folder / "other";
  const auto plain = trained(study, options, 0);
  for (size_t i = 0; i < own.size(); ++i) CHECK(same_bits(own[i], plain[i]));
  remove_checkpoint(folder / "run");
  CHECK(!fs::exists(folder / "run" / "recent-0.safetensors"));
}

namespace {

// A model of one number, whose evaluations have been written down before.
struct ScriptedTask : TrainTask {
  explicit ScriptedTask(std::vector<Validation> script) : script(std::move(script)) {}
  struct Number : Module {
    Tensor value = make_parameter({1}, 1);
    void visit(Visitor& visitor) override { visitor.parameter("value", value); }
  };
  Module& model() override { return number; }
  std::vector<MicroBatch> micro_batches(int64_t) override {
    return {{1, [this] { return sum(number.value * number.value); }}};
  }
  Validation validate(bool, const StopRequest&) override { return script.at(next++); }
  Number number;
  std::vector<Validation> script;
  size_t next = 0;
};

}  // namespace

TEST_CASE("a_mean_that_was_best_stays_best_when_the_run_goes_on") {
  const TemporaryFolder folder;
  TrainOptions options;
  options.schedule = {.name = "constant", .lr = 0.01, .warmup = 0, .steps = 4};
  options.eval_every = 2;
  options.average = 2;
  options.out = folder / "run";
  options.description = {"{}", "{}", "{}"};
  ScriptedTask first({{5, 1}, {4, 10}, {3, 11}, {3, 20}});  // after 0, 2 and 4 steps; the mean
  const TrainResult before = Trainer(first, options).run(0, {});
  CHECK(before.averaged == 2);
  CHECK(before.best_loss == Approx(-20));
  const std::string best = content(folder / "run" / "best.safetensors");
  options.schedule.steps = 6;
  ScriptedTask second({{2, 15}, {2, 18}});
  Trainer trainer(second, options);
  trainer.resume();
  const TrainResult after = trainer.run(0, {});
  CHECK(after.steps == 6);
  CHECK(after.best_loss == Approx(-20));
  CHECK(after.averaged == 2);
  CHECK(content(folder / "run" / "best.safetensors") == best);
}

TEST_CASE("of_equal_bleu_the_lower_loss_is_better") {
  CHECK(Validation{2, 0}.judged_by() < Validation{3, 0}.judged_by());
  CHECK(Validation{9, 10.01}.judged_by() < Validation{1, 10}.judged_by());
  CHECK(Validation{2, {}}.judged_by() < Validation{3, {}}.judged_by());
}

TEST_CASE("every_evaluation_translates_the_same_sentences") {
  Study study;
  Seq2Seq model(study.config, 1);
  TranslationTask task(model, study.coders, study.training, study.validation, study.text,
                       {.bleu_sentences = 3});
  TrainOptions options = study.options({}, 60);  // enough to translate at all
  options.schedule.lr = 1e-2;
  options.eval_every = 0;  // the one at the end is of the whole validation part
  Trainer(task, options).run(0, {});
  CHECK(task.translations().size() == 3);
}

TEST_CASE("a_translators_validation_ends_where_it_is_asked_to") {
  Study study;
  Seq2Seq model(study.config, 1);
  TranslationTask task(model, study.coders, study.training, study.validation, study.text, {});
  TrainOptions options = study.options({}, 60);  // enough to translate at all
  options.schedule.lr = 1e-2;
  options.eval_every = 0;
  Trainer(task, options).run(0, {});
  int asked = 0;
  const StopRequest count = [&] { return ++asked == 0; };
  translation_loss(model, study.validation, count);
  CHECK(asked == study.validation.batches());
  asked = 0;
  task.validate(true, count);
  const int all = asked;
  CHECK(all > study.validation.batches());  // while it translates as well
  for (const int last : {1, all}) {
    asked = 0;
    CHECK_THROWS_AS(task.validate(true, [&] { return ++asked == last; }), Stopped);
    CHECK(asked == last);
  }
}

TEST_CASE("a_run_ends_when_its_time_is_up_with_an_evaluation") {
  const TemporaryFolder folder;
  Study study;
  TrainOptions options = study.options(folder / "run", 1'000'000);
  options.seconds = 0.5;
  options.eval_every = 1000;
  Seq2Seq model(study.config, 1);
  TranslationTask task(model, study.coders, study.training, study.validation, study.text, {});
  Trainer trainer(task, options);
  const TrainResult result = trainer.run(0, {});
  CHECK(result.end == TrainResult::End::out_of_time);
  CHECK(result.steps > 0);
  const auto metrics = read_metrics(folder / "run" / "metrics.jsonl");
  CHECK(metrics.back().val_bleu.has_value());
  CHECK(metrics.back().step == result.steps);
  CHECK(read_model_file(folder / "run").step == result.steps);
}

TEST_CASE("a_translator_is_loaded_with_its_tokenizers") {
  const TemporaryFolder folder;
  Study study;
  Seq2Seq model(study.config, 1);
  const ModelFile description{to_json(study.config), to_json(study.coders), "{}"};
  save_model(folder / "m", description, model);
  const Translator translator = load_translator(folder / "m");
  const std::vector<std::string> sentences{"the dog saw a tree.", "", "a cat."};
  const auto expected = translate_sentences(model, study.coders, sentences, {.beam = 2});
  const auto got =
      translate_sentences(*translator.model, translator.coders, sentences, {.beam = 2});
  CHECK(got.sentences == expected.sentences);
  CHECK(got.sentences[1].empty());
  CHECK(got.mean_score == expected.mean_score);

  const auto objection = [&](const std::string& config, const std::string& coders) -> std::string {
    save_model(folder / "bad", {config, coders, "{}"}, model);
    try {
      load_translator(folder / "bad");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const SentenceCoders bytes{SentenceCoder(std::make_shared<ByteTokenizer>(), true),
                             SentenceCoder(std::make_shared<ByteTokenizer>(), true)};
  CHECK_THAT(objection(description.config, to_json(bytes)),
             ContainsSubstring("do not belong together"));
  CHECK_THAT(objection(description.config, ByteTokenizer().to_json()),
             ContainsSubstring("another kind of model"));
  CHECK_THAT(objection(description.config, "nonsense"), ContainsSubstring("another kind"));
  for (const auto field : {&TransformerConfig::channels, &TransformerConfig::hidden,
                           &TransformerConfig::vocabulary, &TransformerConfig::layers,
                           &TransformerConfig::encoder_layers, &TransformerConfig::context}) {
    TransformerConfig claimed = study.config;
    claimed.*field = int64_t{1} << 40;
    CHECK(objection(to_json(claimed), description.tokenizer).size() > 20);
  }
}

TEST_CASE("coders_survive_their_json_shared_or_separate") {
  const SentenceCoders shared = small_coders();
  const SentenceCoders again = coders_from_json(to_json(shared));
  CHECK(&again.source.tokenizer() == &again.target.tokenizer());
  CHECK(to_json(again) == to_json(shared));
  const SentenceCoders separate{shared.source,
                                SentenceCoder(std::make_shared<ByteTokenizer>(), true)};
  const SentenceCoders apart = coders_from_json(to_json(separate));
  CHECK(apart.target.vocabulary() == 257);
  CHECK(apart.source.vocabulary() == shared.source.vocabulary());
}

TEST_CASE("a_source_longer_than_the_context_is_cut_and_counted") {
  Study study;
  Seq2Seq model(study.config, 1);
  std::string longest;
  for (int i = 0; i < 20'000; ++i) longest += "xyzw ";
  const auto run = translate_sentences(model, study.coders, {longest, "a dog."}, {.beam = 1});
  CHECK(run.cut == 1);
  CHECK(run.sentences.size() == 2);
}
