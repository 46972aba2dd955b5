// tokenizer and translate as their user meets them: what they print and leave, options, and files
// that do not fit.
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

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
      source += "T" + pair.source.substr(1) + "\n";  // a capital letter, for --lowercase
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
  // Of training with small sizes, unless `options` names others.
  static std::string train_command(const std::string& options) {
    const bool given = options.find("--tokenizer") != options.npos;
    return "'" TAPEFORMER_TRANSLATE
           "' train --src train.src --tgt train.tgt --val-src val.src --val-tgt val.tgt"
           " --threads 1 --layers 1 --encoder-layers 1 --heads 2 --channels 8 --hidden 16" +
           std::string(given ? "" : " --merges 60") +
           " --batch-tokens 300 --warmup 2 --eval-every 2 " + options;
  }
  Outcome train(const std::string& options) const { return run(train_command(options)); }
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

  // A sentence that had to be cut has a picture too: of what was read.
  const std::string command = "'" TAPEFORMER_TRANSLATE "' run --checkpoint run --threads 1 ";
  fs::remove(desk / "a.svg");
  CHECK(desk.piped(command + "--attention a.svg", std::string(100'000, 'x') + "\n").status == 0);
  CHECK_THAT(content(desk / "a.svg"), ContainsSubstring("(end)"));
  const Outcome none = desk.piped(command + "--attention b.svg", "");
  CHECK(none.status == 1);
  CHECK_THAT(none.err, ContainsSubstring("no first sentence"));
  // Other encodings are refused, with the number of the line, once those before it are translated.
  const Outcome latin = desk.piped(command, "a dog\ncaf\xE9\na cat\n");
  CHECK(latin.status == 1);
  CHECK(latin.out == desk.piped(command, "a dog\n").out);
  CHECK(std::ranges::count(latin.out, '\n') == 1);
  CHECK_THAT(latin.err, ContainsSubstring("line 2 of standard input is not UTF-8"));
}

TEST_CASE("a_line_in_a_pipe_is_translated_before_the_next_one_comes") {
  const TranslationDesk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  REQUIRE(mkfifo((desk / "pipe").c_str(), 0600) == 0);
  const std::string command = "'" TAPEFORMER_TRANSLATE "' run --checkpoint run --threads 1 ";
  const auto translated = [&](const std::string& options) {
    fs::remove(desk / "out");
    const pid_t child = start(desk, "sh -c \"" + command + options + " < pipe\"");
    std::fstream pipe(desk / "pipe");  // to read as well: then it opens without the other end
    const auto lines = [&] { return std::ranges::count(content(desk / "out"), '\n'); };
    for (int line = 1; line <= 2; ++line) {
      pipe << "the dog saw a tree.\n" << std::flush;
      for (int i = 0; i < 1000 && lines() < line; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      CHECK(lines() == line);
    }
    pipe.close();
    CHECK(status_of(child) == 0);
    return content(desk / "out");
  };
  const std::string text = "the dog saw a tree.\nthe dog saw a tree.\n";
  for (const std::string options : {"", "--sample --seed 2"})
    CHECK(translated(options) == desk.piped(command + options, text).out);
}

TEST_CASE("samples_of_a_translator_follow_their_seed") {
  const TranslationDesk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  const auto sample = [&](const std::string& options) {
    const Outcome outcome = desk.piped(
        "'" TAPEFORMER_TRANSLATE "' run --checkpoint run --threads 1 --sample " + options,
        "the dog saw a tree.\na cat.\n");
    CAPTURE(options, outcome.err);
    CHECK(outcome.status == 0);
    return outcome.out;
  };
  const std::string plain = sample("");
  CHECK(sample("") == plain);
  for (const char* options : {"--seed 2", "--temperature 0", "--top-k 1", "--top-p 0.01"}) {
    CAPTURE(options);
    CHECK(sample(options) != plain);
  }
  CHECK(desk.translate("run --checkpoint run --top-k 1").status != 0);  // it needs --sample
}

TEST_CASE("a_translators_run_that_was_killed_resumes_with_its_texts_and_the_same_bits") {
  const TranslationDesk desk;
  const std::string options = " --steps 40 --dropout 0.2";
  REQUIRE(desk.train("--out whole" + options).status == 0);
  const pid_t child = start(desk, TranslationDesk::train_command("--out parts" + options));
  wait_for(desk / "parts" / "model.safetensors");
  kill(child, SIGKILL);
  status_of(child);
  const Outcome resumed = desk.translate("train --out parts --resume --threads 1");
  CAPTURE(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK(content(desk / "parts" / "model.safetensors") ==
        content(desk / "whole" / "model.safetensors"));
  CHECK(content(desk / "parts" / "best.safetensors") ==
        content(desk / "whole" / "best.safetensors"));
  CHECK(Desk::last_line(resumed.out) ==
        Desk::last_line(desk.translate("train --out whole --resume --threads 1").out));
}

TEST_CASE("a_translators_run_that_was_interrupted_prints_the_command_that_goes_on") {
  const TranslationDesk desk;
  const pid_t child = start(desk, TranslationDesk::train_command("--out 'my run' --steps 100000"));
  wait_for(desk / "my run" / "best.safetensors");
  kill(child, SIGINT);
  CHECK(status_of(child) == 0);
  const int64_t step = read_model_file(desk / "my run").step;
  const std::string command = Desk::after(content(desk / "out"), "\nstopped      go on with: ");
  const Outcome resumed = desk.run(command + " --seconds 1e-3");  // time for one more step
  CAPTURE(command, resumed.err);
  CHECK(resumed.status == 0);
  CHECK(read_model_file(desk / "my run").step == step + 1);
}

TEST_CASE("a_resumed_translators_run_keeps_its_options_and_texts") {
  const TranslationDesk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  const auto refused = [&](const std::string& options, const std::string& why) {
    const Outcome outcome = desk.translate("train --out run --resume --threads 1 " + options);
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.err, ContainsSubstring(why));
  };
  refused("--lr 1", "--lr 1: the run in run has 0.004");
  refused("--lowercase", "--lowercase true: the run in run has false");
  refused("--overwrite", "contradict");
  refused("--src train.src", "go together");
  refused("--src val.src --tgt val.tgt --val-src val.src --val-tgt val.tgt", "not the texts");
  fs::rename(desk / "train.src", desk / "moved.src");
  fs::rename(desk / "train.tgt", desk / "moved.tgt");
  refused("", "cannot open");
  CHECK(desk.translate("train --out run --resume --threads 1 --src moved.src --tgt moved.tgt "
                       "--val-src val.src --val-tgt val.tgt")
            .status == 0);
  REQUIRE(static_cast<const Desk&>(desk).train("--out gpt --steps 1").status == 0);
  CHECK_THAT(desk.translate("train --out gpt --resume").err,
             ContainsSubstring("not a checkpoint of translate train"));
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
  REQUIRE(desk.tokenizer("train --data train.tgt --merges 40 --out bpe.json").status == 0);
  const auto trace = [&](const std::string& options) {
    const Outcome outcome = desk.train("--out trace --overwrite --steps 3 " + options);
    CAPTURE(options, outcome.err);
    CHECK(outcome.status == 0);
    std::string text;
    for (const Metrics& m : read_metrics(desk / "trace" / "metrics.jsonl"))
      for (const double number :
           {m.train_loss.value_or(0), m.val_loss.value_or(0), m.lr.value_or(0)})
        text += "/" + shortest(number);
    std::set<std::string> files;
    for (const auto& entry : fs::directory_iterator(desk / "trace"))
      files.insert(entry.path().filename().string());
    for (const std::string& file : files) text += "/" + file;
    return text;
  };
  // An option and what it is compared with: the same call without it.
  std::map<std::string, std::string> tried{{"--layers 2", ""},
                                           {"--encoder-layers 2", ""},
                                           {"--heads 4", ""},
                                           {"--channels 16", ""},
                                           {"--hidden 8", ""},
                                           {"--norm rmsnorm", ""},
                                           {"--encoder-norm rmsnorm", ""},
                                           {"--decoder-norm rmsnorm", ""},
                                           {"--placement post", ""},
                                           {"--initialization normal", ""},
                                           {"--position rotary", ""},
                                           {"--activation gelu", ""},
                                           {"--dropout 0.1", ""},
                                           {"--untied", ""},
                                           {"--separate", ""},
                                           {"--lowercase", ""},
                                           {"--tokenizer bpe.json", ""},
                                           {"--longest 20", ""},
                                           {"--merges 50", ""},
                                           {"--batch-tokens 200", ""},
                                           {"--accumulate 2", ""},
                                           {"--steps 2", ""},
                                           {"--seconds 1e-3", ""},
                                           {"--lr 1e-2", ""},
                                           {"--min-lr 1e-3", "--schedule linear --warmup 0"},
                                           {"--warmup 3", ""},
                                           {"--schedule constant", ""},
                                           {"--beta1 0.5", ""},
                                           {"--beta2 0.5", ""},
                                           {"--weight-decay 5", ""},
                                           {"--clip 0.01", ""},
                                           {"--smoothing 0.3", ""},
                                           {"--eval-every 1", ""},
                                           {"--patience 1", "--lr 0 --eval-every 1"},
                                           {"--average 0", ""},
                                           {"--dtype bf16", ""},
                                           {"--seed 2", ""}};
  std::map<std::string, std::string> plain;
  for (const auto& [option, beside] : tried) {
    CAPTURE(option);
    if (!plain.contains(beside)) plain[beside] = trace(beside);
    CHECK(trace(beside + " " + option) != plain[beside]);
  }
  CHECK(trace("") == plain[""]);
  // No option is forgotten. These have tests of their own, or change no number.
  std::set<std::string> known{
      "--help",   "--src",       "--tgt",     "--val-src",    "--val-tgt",        "--out",
      "--resume", "--overwrite", "--threads", "--save-every", "--bleu-sentences", "--device"};
  for (const auto& [option, beside] : tried) known.insert(option.substr(0, option.find(' ')));
  std::istringstream help(desk.translate("train --help").out);
  for (std::string line; std::getline(help, line);) {
    const size_t at = line.find("--");
    if (at == line.npos || line.find_first_not_of(' ') + 3 < at) continue;  // in the midst of text
    CAPTURE(line);
    CHECK(known.contains(line.substr(at, line.find_first_of(" =,", at) - at)));
  }
}

TEST_CASE("a_decoder_whose_norm_leaks_gets_a_warning_and_an_encoder_none") {
  const TranslationDesk desk;
  const auto warning = [&](const std::string& out, const std::string& options) {
    const Outcome outcome = desk.train("--steps 1 --out " + out + " " + options);
    CHECK(outcome.status == 0);
    const size_t begin = outcome.err.find("warning");
    return begin == std::string::npos
               ? ""
               : outcome.err.substr(begin, outcome.err.find('\n', begin) - begin);
  };
  CHECK_THAT(warning("a", "--decoder-norm batchnorm"),
             ContainsSubstring("'batchnorm'") && ContainsSubstring("other samples") &&
                 ContainsSubstring("in training") && !ContainsSubstring("--leak-test"));
  CHECK_THAT(warning("b", "--decoder-norm instancenorm"),
             ContainsSubstring("'instancenorm'") && ContainsSubstring("later time steps") &&
                 ContainsSubstring("without the key-value cache"));
  CHECK(warning("c", "--encoder-norm batchnorm") == "");
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
  CHECK_THAT(desk.train("--out y --merges 9 --tokenizer bpe.json").err,
             ContainsSubstring("leave --separate and --merges out"));
  write_bytes(desk / "empty", "");
  CHECK_THAT(desk.translate("train --out x --src empty --tgt empty --val-src val.src "
                            "--val-tgt val.tgt")
                 .err,
             ContainsSubstring("'empty' and 'empty' are empty"));

  REQUIRE(desk.train("--out run --steps 1").status == 0);
  const auto scored = [&](const std::string& options) {
    return desk.translate("evaluate --checkpoint run " + options);
  };
  CHECK(scored("--src val.src --ref val.tgt --threads 1 --beam 300").status == 0);
  const auto refused = [&](const std::string& options, const std::string& why) {
    const Outcome outcome = scored(options);
    CAPTURE(options);
    CHECK(outcome.status > 0);
    CHECK_THAT(outcome.err + outcome.out, ContainsSubstring(why));
  };
  refused("--src empty --ref empty", "are empty");
  refused("--src val.src --ref train.tgt", "8 lines and 'train.tgt' 60");
  refused("--src val.src --ref val.tgt --beam 0", "1 ... 10000, got 0");
  refused("--src val.src --ref val.tgt --beam 10001", "1 ... 10000, got 10001");
  refused("--src val.src --ref val.tgt --beam x", "no whole number");
  refused("--src val.src --ref val.tgt --length-penalty nan", "length penalty is nan");
  refused("--src val.src --ref val.tgt --threads -1", "0 ... 1024, got -1");
}
