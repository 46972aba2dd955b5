// A program in a locale that writes 1,5 for 1.5: files, options and what is read back are the same.
#include <cstdlib>
#include <map>

#include "data/stories.h"
#include "examples/train_gpt_options.h"
#include "examples/translate_options.h"
#include "lab/card.h"
#include "lab/grid.h"
#include "lab/table.h"
#include "tests/catch.h"
#include "tests/locale_with_comma.h"
#include "tests/temporary_folder.h"
#include "train/language_model.h"
#include "train/model_config.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

using Texts = std::map<std::string, std::string>;

// Every file of a run that stopped and went on. How fast it was is left out.
Texts files_of_a_run() {
  const TemporaryFolder folder;
  const Text text(generate_stories(1, 20'000), "stories");
  const auto tokenizer = make_tokenizer("character", text.view());
  const TextCorpus corpus(text, *tokenizer, {.rows = 2, .context = 8, .seed = 1});
  const TransformerConfig config{.vocabulary = tokenizer->vocabulary_size(),
                                 .context = 8,
                                 .layers = 1,
                                 .heads = 2,
                                 .channels = 8,
                                 .rotary_base = 1234.5,
                                 .dropout = 0.125};
  TrainOptions options;
  options.schedule = {.lr = 0.0125, .warmup = 2, .steps = 6};
  options.eval_every = 2;
  options.eval_batches = 1;
  options.inspect_every = 3;
  options.out = folder / "run";
  options.description = {to_json(config), tokenizer->to_json(), "{}"};
  for (const int64_t stop : {3, 6}) {
    GPT model(config, 1);
    Trainer trainer(model, corpus, options);
    if (stop == 6) trainer.resume();
    trainer.run(stop, {});
  }
  CHECK(load_language_model(options.out).model->config() == config);
  Texts texts;
  for (const auto& entry : fs::directory_iterator(options.out))
    texts[entry.path().filename().string()] = content(entry.path());
  std::string& metrics = texts["metrics.jsonl"] = "";
  for (Metrics at : read_metrics(options.out / "metrics.jsonl")) {
    at.tokens_per_second.reset();
    metrics += to_json(at) + "\n";
  }
  return texts;
}

Texts texts_of_the_lab() {
  const lab::Card card{.name = "card",
                       .judgement = {.measured = {{"a", {1.5, 1e-7}}, {"b", {12345.678}}}},
                       .seconds = 1234.5};
  lab::Table table({"norm", "loss"});
  table.add({"layernorm", 1234.5678});
  table.add({"1,5", 2.5e-9});
  const lab::Grid grid = lab::parse_grid("lr=1e-3,0.5,clip=0.25");
  return {{"card", to_text(card) + to_json(card)},
          {"card, read", to_json(lab::card_from_json(to_json(card)))},
          {"table", table.csv()},
          {"table, read", lab::Table::from_csv(table.csv()).csv()},
          {"grid", shortest(grid.lr.at(1)) + " " + shortest(grid.clip.at(0))}};
}

// Options as a command line gives them, and as a checkpoint keeps them.
template <class Options>
std::string numbers_of_options(const std::string& command) {
  std::string texts;
  const auto describe = [&](const Options& o) {
    for (const double number :
         {o.train.schedule.lr, o.train.schedule.min_lr, o.train.adamw.beta2, o.train.adamw.epsilon,
          o.train.adamw.weight_decay, o.train.clip, o.model.dropout})
      texts += shortest(number) + " ";
  };
  Options given, kept;
  CLI::App app, again;
  declare(app, given);
  declare(again, kept);
  app.parse(command);
  describe(given);
  for (CLI::Option* option : again.get_options()) option->required(false);
  read_kept_options(again, app.config_to_str(true), app, "run");
  describe(kept);
  return texts + app.help();
}

Texts everything() {
  Texts texts = files_of_a_run();
  texts.merge(texts_of_the_lab());
  const std::string options = "--lr 0.0125 --min-lr 1e-05 --dropout 0.25 --clip 1.5 --beta2 0.975";
  texts["train_gpt"] = numbers_of_options<TrainGptOptions>(options);
  texts["translate"] = numbers_of_options<TranslateTrainOptions>("--out run " + options);
  return texts;
}

}  // namespace

TEST_CASE("files_and_options_are_the_same_in_a_locale_with_a_decimal_comma") {
  const Texts expected = everything();
  CHECK(expected.at("train_gpt").starts_with("0.0125 1e-05 0.975 1e-08 0.1 1.5 0.25 0.0125 "));
  const LocaleWithComma locale;
  if (locale.in_c())
    CHECK(std::strtod("1,5", nullptr) == 1.5);
  else
    WARN(
        "no locale such as de_DE.UTF-8 is installed; streams have one, the C library's functions "
        "do not");
  for (const auto& [name, text] : everything()) {
    CAPTURE(name);
    CHECK(text == expected.at(name));
  }
}
