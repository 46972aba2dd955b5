// tokenizer and translate as their user meets them: what they print and leave, options, and files
// that do not fit.
#include <algorithm>
#include <cstdio>

#include "data/languages.h"
#include "tests/desk.h"
#include "train/translation_scores.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

// A folder with small parallel texts and a trained translator's command line.
struct TranslationDesk : Desk {
  TranslationDesk() {
    write("train", generate_pairs(1, 60));
    write("val", generate_pairs(2, 8));
  }
  void write(const std::string& name, const std::vector<SentencePair>& pairs) const {
    std::string source, target;
    for (const SentencePair& pair : pairs) {
      source += pair.source + "\n";
      target += pair.target + "\n";
    }
    write_bytes(*this / (name + ".src"), source);
    write_bytes(*this / (name + ".tgt"), target);
  }
  Outcome translate(const std::string& arguments) const {
    return run("'" TAPEFORMER_TRANSLATE "' " + arguments);
  }
  Outcome tokenizer(const std::string& arguments) const {
    return run("'" TAPEFORMER_TOKENIZER "' " + arguments);
  }
  // With `input` on standard input.
  Outcome piped(const std::string& command, const std::string& input) const {
    write_bytes(*this / "input", input);
    return run("( " + command + " < input )");
  }
  // With small sizes, unless `options` names others.
  Outcome train(const std::string& options) const {
    return translate(
        "train --src train.src --tgt train.tgt --val-src val.src --val-tgt val.tgt --threads 1"
        " --layers 1 --encoder-layers 1 --heads 2 --channels 8 --hidden 16 --merges 60"
        " --batch-tokens 300 --warmup 2 --eval-every 2 " +
        options);
  }
};

}  // namespace

TEST_CASE("tokenizer_learns_encodes_and_decodes_lines") {
  const TranslationDesk desk;
  REQUIRE(desk.tokenizer("train --data train.src train.tgt --merges 50 --out bpe.json").status ==
          0);
  const std::string lines = "the dog\n\n  caf\xC3\xA9 \xFF!\n";
  const Outcome ids = desk.piped("'" TAPEFORMER_TOKENIZER "' encode --tokenizer bpe.json", lines);
  CHECK(ids.status == 0);
  const std::string decode = "'" TAPEFORMER_TOKENIZER "' decode --tokenizer bpe.json";
  CHECK(desk.piped(decode, ids.out).out == lines);
  const Outcome outside = desk.piped(decode, "12\n99999\n");
  CHECK(outside.status == 1);
  CHECK_THAT(outside.err, ContainsSubstring("99999"));
  CHECK_THAT(desk.piped(decode, "12\nx\n").err, ContainsSubstring("line 2: 'x' is no id"));
  CHECK_THAT(desk.tokenizer("encode --tokenizer none.json").err, ContainsSubstring("none.json"));
  CHECK_THAT(desk.tokenizer("train --data none --out x").err, ContainsSubstring("cannot open"));
}

TEST_CASE("train_gpt_takes_a_tokenizers_file_and_keeps_it_in_the_checkpoint") {
  const TranslationDesk desk;
  REQUIRE(desk.tokenizer("train --data train.src --merges 40 --out bpe.json").status == 0);
  const Desk& gpt = desk;
  REQUIRE(gpt.train("--tokenizer bpe.json --out run --steps 4 --stop-after 2").status == 0);
  fs::remove(desk / "bpe.json");
  CHECK(gpt.train("--resume run").status == 0);
  const Outcome text = gpt.generate("--prompt the --tokens 5 --seed 1");
  CHECK(text.status == 0);
  CHECK(text.out.starts_with("the"));
}

TEST_CASE("translate_trains_scores_and_translates") {
  const TranslationDesk desk;
  const Outcome trained = desk.train("--out run --steps 5");
  CAPTURE(trained.err);
  REQUIRE(trained.status == 0);
  double best = -1;
  CHECK(std::sscanf(Desk::last_line(trained.out).c_str(), "best validation BLEU %lf", &best) == 1);
  for (const char* name : {"model.safetensors", "best.safetensors", "metrics.jsonl", "curves.svg"})
    CHECK(fs::exists(desk / "run" / name));

  const Outcome score =
      desk.translate("evaluate --checkpoint run --src val.src --ref val.tgt --lowercase --beam 2");
  REQUIRE(score.status == 0);
  const std::string signature = Desk::last_line(score.out);
  CHECK_THAT(signature, ContainsSubstring(bleu_signature(true)));
  CHECK_THAT(signature, ContainsSubstring(chrf2_signature(true)));
  double bleu_score = -1, chrf = -1;
  const std::string rest = score.out.substr(0, score.out.size() - signature.size() - 1);
  CHECK(std::sscanf(Desk::last_line(rest).c_str(), "BLEU = %lf chrF2 = %lf", &bleu_score, &chrf) ==
        2);

  const Outcome run =
      desk.piped("'" TAPEFORMER_TRANSLATE "' run --checkpoint run --threads 1 --attention a.svg",
                 "the dog saw a tree.\n\n" + std::string(100'000, 'x') + "\na cat.\n");
  CHECK(run.status == 0);
  CHECK_THAT(run.err, ContainsSubstring("1 lines are longer"));
  CHECK(std::count(run.out.begin(), run.out.end(), '\n') == 4);
  CHECK_THAT(content(desk / "a.svg"), ContainsSubstring("(end)"));
}

TEST_CASE("a_translators_run_is_not_overwritten_and_resumes") {
  const TranslationDesk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  CHECK_THAT(desk.train("--out run --steps 4").err, ContainsSubstring("--resume"));
  CHECK(desk.train("--out run --resume").status == 0);
  CHECK(desk.train("--out run --overwrite --steps 1").status == 0);
  CHECK_THAT(desk.train("--out none --resume").err, ContainsSubstring("no checkpoint"));
}

TEST_CASE("every_option_of_translate_train_moves_something") {
  const TranslationDesk desk;
  const auto trace = [&](const std::string& options) {
    const Outcome outcome = desk.train("--out trace --overwrite --steps 3 " + options);
    CAPTURE(options, outcome.err);
    CHECK(outcome.status == 0);
    std::string text;
    for (const Metrics& m : read_metrics(desk / "trace" / "metrics.jsonl"))
      for (const double number :
           {m.train_loss.value_or(0), m.val_loss.value_or(0), m.lr.value_or(0)})
        text += "/" + shortest(number);
    return text;
  };
  const std::string plain = trace("");
  CHECK(trace("") == plain);
  for (const char* option : {"--layers 2",
                             "--encoder-layers 2",
                             "--heads 4",
                             "--channels 16",
                             "--hidden 8",
                             "--norm rmsnorm",
                             "--encoder-norm rmsnorm",
                             "--decoder-norm rmsnorm",
                             "--placement post",
                             "--initialization normal",
                             "--position rotary",
                             "--activation gelu",
                             "--dropout 0.1",
                             "--untied",
                             "--separate",

                             "--longest 20",
                             "--merges 50",
                             "--batch-tokens 200",
                             "--accumulate 2",
                             "--steps 2",
                             "--lr 1e-2",
                             "--warmup 3",
                             "--schedule constant",
                             "--beta2 0.5",
                             "--weight-decay 5",
                             "--clip 0.01",
                             "--smoothing 0.3",
                             "--eval-every 1",
                             "--seed 2"}) {
    CAPTURE(option);
    CHECK(trace(option) != plain);
  }
}

TEST_CASE("texts_and_checkpoints_that_do_not_fit_are_named") {
  const TranslationDesk desk;
  write_bytes(desk / "short", "one\n");
  write_bytes(desk / "latin1", "caf\xE9\n");
  CHECK_THAT(desk.translate("train --out x --src train.src --tgt short --val-src val.src "
                            "--val-tgt val.tgt")
                 .err,
             ContainsSubstring("60 lines") && ContainsSubstring("1;"));
  CHECK_THAT(desk.translate("train --out x --src latin1 --tgt short --val-src val.src "
                            "--val-tgt val.tgt")
                 .err,
             ContainsSubstring("not UTF-8"));
  CHECK_THAT(desk.translate("train --out x --src train.src").err, ContainsSubstring("--val-src"));
  CHECK(!fs::exists(desk / "x" / "model.safetensors"));
  REQUIRE(static_cast<const Desk&>(desk).train("--out gpt --steps 1").status == 0);
  CHECK_THAT(desk.translate("run --checkpoint gpt").err,
             ContainsSubstring("another kind of model"));
  CHECK(desk.translate("run --checkpoint nothing").status == 1);
  for (const char* option : {"--beam 0", "--beam x", "--length-penalty nan"}) {
    CAPTURE(option);
    CHECK(desk.translate("evaluate --checkpoint gpt --src val.src --ref val.tgt " +
                         std::string(option))
              .status > 0);
  }
}
