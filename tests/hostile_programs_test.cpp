// The programs under hostile hands: wrong numbers, options that do not apply, kill -9, files taken
// away, and environments that must not change a bit.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/desk.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

// The weights and the optimizer's state without the header, which holds the options.
std::string state_of(const fs::path& run, const std::string& training) {
  std::string state;
  for (const char* name : {"model.safetensors", training.c_str()}) {
    const std::string bytes = content(run / name);
    uint64_t header = 0;
    REQUIRE(bytes.size() > 8);
    std::memcpy(&header, bytes.data(), 8);
    state += bytes.substr(8 + header);
  }
  return state;
}

}  // namespace

TEST_CASE("options_out_of_bounds_are_refused_and_those_at_the_bounds_defined") {
  const Desk desk;
  const auto refused = [&](const std::string& options, const std::string& word) {
    CAPTURE(options);
    const Outcome outcome = desk.train("--out new --steps 2 " + options);
    CHECK(outcome.status > 0);
    CHECK(!fs::exists(desk / "new"));
    CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  for (const char* option :
       {"steps",      "lr",         "min-lr",       "warmup",     "clip",     "batch",
        "accumulate", "context",    "layers",       "heads",      "kv-heads", "channels",
        "hidden",     "eval-every", "eval-batches", "save-every", "patience", "stop-after",
        "seed",       "threads",    "dropout",      "beta1",      "beta2",    "weight-decay"})
    refused("--" + std::string(option) + " -1", "-1");
  for (const char* option : {"lr", "clip", "dropout", "beta1", "weight-decay"})
    refused("--" + std::string(option) + " nan", "nan");
  for (const char* option : {"lr", "min-lr", "clip", "dropout", "beta1", "beta2", "weight-decay"})
    refused("--" + std::string(option) + " 1e400", "is no number");
  for (const char* option : {"layers", "heads", "kv-heads", "channels", "hidden", "context",
                             "batch", "accumulate", "threads"})
    refused("--" + std::string(option) + " 9223372036854775807", "");
  refused("--layers 10001", "layers must be at most 10000");
  for (const char* option : {"--layers 1000000000000", "--layers 10000 --channels 8192",
                             "--channels 1000000000", "--channels 4611686018427387904"})
    refused(option, "lower layers, channels or hidden");
  refused("--weight-decay inf", "weight_decay must be at least 0 and finite");
  refused("--data ''", "--data: the name is empty");
  refused("--out ''", "--out: the name is empty");
  refused("--steps ''", "is no whole number");
  refused("--steps 9223372036854775808", "is no whole number");
  refused("--seed 18446744073709551616", "is no whole number");
  refused("--lr inf", "inf");
  refused("--batch 1000000000000", "lower batch");
  refused("--accumulate 1000000000000", "accumulate");
  refused("--context 9223372036854775806", "larger than any memory");
  refused("--lr -1", "--lr must be at least 0, got -1");
  refused("--min-lr 0.1", "above --lr");
  refused("--schedule constant --min-lr 1e-4", "'constant'");
  refused("--patience 2 --eval-every 0", "--eval-every 0");
  refused("--data /dev/zero", "is a device");

  for (const char* option : {"--lr -1", "--warmup -1", "--accumulate 0", "--beta1 1"})
    CHECK(desk.train(option).status > 0);
  CHECK(!fs::exists(desk / "runs"));  // without --out

  const Outcome endless = desk.train("--out new --steps 2 --config /dev/zero");
  CHECK(endless.status > 0);
  CHECK_THAT(endless.err, ContainsSubstring("is a device"));

  const auto loss = [&](const std::string& options) {
    const Outcome outcome = desk.train("--overwrite --out run " + options);
    CAPTURE(options, outcome.err);
    CHECK(outcome.status == 0);
    const std::string line = Desk::last_line(outcome.out);
    return line.substr(0, line.find(" after"));
  };
  const std::string untrained = loss("--steps 0");
  CHECK(loss("--steps 2 --lr 0 --warmup 0") == untrained);  // the end is at most the peak
  CHECK(loss("--steps 2 --warmup 2") != untrained);
  CHECK(loss("--steps 2 --warmup 99") != untrained);
  CHECK(loss("--steps 2 --batch 1 --context 1") != untrained);
  write_bytes(desk / "one.txt", std::string(300, 'a'));
  CHECK(loss("--steps 2 --data one.txt") == "final validation loss 0.0000 (perplexity 1.000)");
}

TEST_CASE("a_misspelt_option_is_answered_with_the_one_that_may_be_meant") {
  const Desk desk;
  const auto answer = [&](const std::string& command) {
    CAPTURE(command);
    const Outcome outcome = desk.run(command);
    CHECK(outcome.status > 0);
    return outcome.err;
  };
  CHECK_THAT(answer(GENERATE_TEXT " --checkpoint run --temprature 0.5"),
             ContainsSubstring("not expected") &&
                 ContainsSubstring("\nIs --temperature meant by --temprature?\n"));
  CHECK_THAT(answer(GENERATE_TEXT " --checkpoint run --temp 0.5"),
             ContainsSubstring("Is --temperature meant by --temp?"));
  CHECK_THAT(answer(TRAIN_GPT " --lyers=6"), ContainsSubstring("Is --layers meant by --lyers?"));
  CHECK_THAT(answer(NORM_LAB " --sedes 3"), ContainsSubstring("Is --seeds meant by --sedes?"));
  CHECK_THAT(answer("'" TAPEFORMER_TOKENIZER "' train --data a --merge 5"),
             ContainsSubstring("Is --merges meant by --merge?"));
  CHECK_THAT(answer("'" TAPEFORMER_TRANSLATE "' run --chekpoint a"),  // not the one it requires
             ContainsSubstring("Is --checkpoint meant by --chekpoint?"));
  CHECK_THAT(answer(TRAIN_GPT " --learning-rate 1 --epochs 2"), !ContainsSubstring("meant by"));
}

TEST_CASE("generate_defines_or_refuses_every_bound") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 1").status == 0);
  for (const char* option : {"--tokens -1", "--tokens ''", "--top-k -1", "--top-p 0", "--top-p 1.5",
                             "--top-p nan", "--temperature -1", "--temperature inf", "--seed -1",
                             "--seed 18446744073709551616", "--threads -1", "--threads 9999"}) {
    CAPTURE(option);
    const Outcome outcome = desk.generate(option);
    CHECK(outcome.status > 0);
    CHECK(outcome.out.size() + outcome.err.size() > 20);
  }
  const std::string all = desk.generate("--seed 1 --tokens 20").out;
  CHECK(desk.generate("--seed 1 --tokens 20 --top-k 100000").out == all);
  CHECK(desk.generate("--seed 1 --tokens 0").out == "\n");
  const std::string prompt = content(desk / "text.txt").substr(0, 3000);  // the context is 8
  write_bytes(desk / "prompt", prompt);
  const Outcome after = desk.generate("--seed 1 --tokens 20 --prompt \"$(cat prompt)\"");
  CHECK(after.status == 0);
  CHECK(after.out.size() > 3000);
}

TEST_CASE("kill_9_and_resume_with_running_statistics_give_the_bits_of_an_unbroken_run") {
  const Desk desk;
  for (const char* norm : {"batchnorm", "powernorm"}) {
    CAPTURE(norm);
    const std::string options = " --data text.txt --steps 60 --save-every 1 --dropout 0.1 --norm " +
                                std::string(norm) + Desk::small();
    const std::string name(norm);
    REQUIRE(desk.run(TRAIN_GPT " --out whole-" + name + options).status == 0);
    const fs::path run = desk / ("killed-" + name);
    for (int kills = 0; kills < 4; ++kills) {
      const pid_t child = start(desk, kills ? TRAIN_GPT " --resume killed-" + name
                                            : TRAIN_GPT " --out killed-" + name + options);
      wait_for(run / "model.safetensors");
      std::this_thread::sleep_for(std::chrono::milliseconds(5 + 13 * kills));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    const Outcome outcome = desk.run(TRAIN_GPT " --resume killed-" + name);
    CAPTURE(outcome.err);
    REQUIRE(outcome.status == 0);
    CHECK(state_of(run, "training-60.safetensors") ==
          state_of(desk / ("whole-" + name), "training-60.safetensors"));
  }
}

TEST_CASE("a_run_goes_on_when_its_text_is_cut_and_its_metrics_are_removed") {
  const Desk desk;
  const std::string options =
      " --data text.txt --tokenizer byte --steps 4000 --save-every 1" + Desk::small();
  const pid_t child = start(desk, TRAIN_GPT " --out run" + options);
  wait_for(desk / "run" / "metrics.jsonl");
  wait_for(desk / "run" / "best.safetensors");
  fs::resize_file(desk / "text.txt", 0);
  fs::remove(desk / "run" / "metrics.jsonl");
  wait_for(desk / "run" / "metrics.jsonl");
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  CAPTURE(content(desk / "err"));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(has_checkpoint(desk / "run"));
}

TEST_CASE("the_environment_does_not_change_a_bit") {
  const Desk desk;
  const auto losses = [&](const std::string& before, const std::string& folder) {
    const Outcome outcome =
        desk.run(before + " " TRAIN_GPT " --data text.txt --overwrite --steps 6 --out '" + folder +
                 "'" + Desk::small() + " --threads 0 --norm batchnorm");
    CAPTURE(before, outcome.err);
    CHECK(outcome.status == 0);
    std::string metrics;
    for (Metrics m : read_metrics(desk / folder / "metrics.jsonl")) {
      m.tokens_per_second = std::nullopt;
      metrics += to_json(m) + "\n";
    }
    return Desk::last_line(outcome.out) + metrics +
           state_of(desk / folder, "training-6.safetensors");
  };
  const std::string plain = losses("", "run");
  CHECK(losses("", "mit Leerzeichen und äöü 日本") == plain);
  // Only OpenBLAS's kernels, where they are chosen by hand: others compute other last digits.
  const char* const empty = "env -i ${OPENBLAS_CORETYPE:+OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE}";
  for (const char* environment :
       {"OMP_NUM_THREADS=1", "OMP_NUM_THREADS=8", "OPENBLAS_NUM_THREADS=3", "taskset -c 0",
        "env -u HOME", empty, "NO_COLOR=1", "COLUMNS=40", "TERM=dumb", "LC_ALL=de_DE.UTF-8"})
    CHECK(losses(environment, "run") == plain);
  // Where the program writes to a terminal 40 columns wide, if there is a command that makes one.
  if (std::system("command -v script >/dev/null") == 0) {
    write_bytes(desk / "run.sh", "stty cols 40\n" TRAIN_GPT
                                 " --data text.txt --overwrite --steps 6 --out run"
                                 " --norm batchnorm" +
                                     Desk::small() + " --threads 0\n");
    const std::string state = state_of(desk / "run", "training-6.safetensors");
    const Outcome outcome = desk.run("script -qec 'sh run.sh' /dev/null");
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, ContainsSubstring("final validation loss"));
    CHECK(state_of(desk / "run", "training-6.safetensors") == state);
  }
  for (const char* build : {"pthread", "openmp"}) {
    const std::string library =
        std::string("/usr/lib/x86_64-linux-gnu/openblas-") + build + "/libopenblas.so.0";
    if (fs::exists(library)) CHECK(losses("LD_PRELOAD=" + library, "run") == plain);
  }
}

TEST_CASE("options_that_do_not_apply_to_the_model_are_refused") {
  const Desk desk;
  const auto refused = [&](const std::string& options, const std::string& word) {
    const Outcome outcome = desk.train("--out new --steps 1 " + options);
    CAPTURE(options);
    CHECK(outcome.status > 0);
    CHECK(!fs::exists(desk / "new"));
    CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  refused("--placement rezero --norm rmsnorm --qk-norm", "'rezero' has no norms");
  refused("--placement rezero --float16-norms", "'rezero' has no norms");
  refused("--norm batchnorm --float16-norms", "not of 'batchnorm'");
  refused("--recalibrate 1", "keeps no running statistics");
  refused("--kv-heads 4", "4");
  refused("--context 1 --leak-test", "two time steps");
  CHECK(desk.train("--out a --steps 1 --placement rezero --norm none").status == 0);
  CHECK(desk.train("--out b --steps 1 --norm rmsnorm").status == 0);
}

TEST_CASE("norm_lab_refuses_options_that_would_change_nothing") {
  const Desk desk;
  write_bytes(desk / "file", "x");
  const auto refused = [&](const std::string& options, const std::string& word) {
    const Outcome outcome = desk.run(NORM_LAB " " + options);
    CAPTURE(options);
    CHECK(outcome.status > 0);
    CHECK_THAT(outcome.err + outcome.out, ContainsSubstring(word));
  };
  refused("nothing", "there is no experiment 'nothing'");
  refused("resnet --list", "--list runs nothing");
  refused("resnet --seeds 0", "--seeds must be positive");
  refused("resnet --seeds -1", "--seeds must be positive");
  refused("resnet --seeds 1000000000", "--seeds must lie in 1 ... 1000");
  refused("resnet --again --data text.txt", "--again measures nothing");
  refused("leak --again --out none", "before judging it again");
  refused("resnet --grid depth=1", "--grid goes with");
  refused("--grid ''", "names no axis");
  refused("--grid depth=1 --lines text.txt", "--grid goes with");
  refused("--grid depth=1 --data missing", "missing");
  refused("resnet --src file", "needs both --src and --tgt");
  refused("resnet --val-src file --val-tgt file", "needs both --src and --tgt");
  refused("resnet --src file --tgt file --val-src file", "--val-src and --val-tgt go together");
  refused("resnet --src file --tgt file", "too few to hold out a twentieth");
  refused("resnet --src file --tgt missing", "missing");
  refused("resnet --again --tgt file", "--again measures nothing");
  refused("--grid depth=1 --src file", "--grid goes with");
  refused("resnet --src ''", "--src: the name is empty");
  refused("resnet --out file", "cannot make the folder file");
  refused("resnet --report file/page.md", "cannot make the folder");
  refused("resnet --out ''", "--out: the name is empty");
  refused("resnet --replace ''", "--replace: the name is empty");
  for (const char* text : {"batchnorm", "=layernorm", "batchnorm=", "batchnorm=batchnorm"})
    refused("leak --replace " + std::string(text), "expected NAME=OTHER");
  refused("leak --replace batchnorm=mine", "there is no norm 'mine'");
  refused("leak --replace mine=batchnorm", "there is no norm 'mine' to replace");
  refused("leak --again --replace batchnorm=rmsnorm", "--again measures nothing");
  refused("--grid depth=1 --replace batchnorm=rmsnorm", "--grid goes with");
  CHECK(desk.run(NORM_LAB " resnet resnet --out 'mit äöü' --report 'new/the page.md'").status == 0);
  CHECK(fs::exists(desk / "new" / "the page.md"));
}

TEST_CASE("a_norm_in_the_place_of_another_is_judged_and_named_on_the_card") {
  const Desk desk;
  const auto card_of = [&](const std::string& options) {
    const Outcome outcome = desk.run(NORM_LAB " accumulation --threads 1 " + options);
    CAPTURE(outcome.err);
    CHECK(outcome.status == 0);
    return outcome.out;
  };
  const std::string quick = "--quick --data text.txt ";
  const std::string batch = card_of(quick + "--out own");
  const std::string layer = card_of(quick + "--replace batchnorm=layernorm");
  CHECK_THAT(batch, ContainsSubstring("VERDICT      does not hold"));
  CHECK_THAT(batch, !ContainsSubstring("Replaced"));
  // Now both norms of the experiment are LayerNorm: what is said of BatchNorm holds, and papers on
  // BatchNorm say nothing of it.
  CHECK_THAT(layer, ContainsSubstring("VERDICT      holds") &&
                        ContainsSubstring("\nReplaced     batchnorm stands for layernorm in the "
                                          "claim, the numbers and the\n") &&
                        !ContainsSubstring("Differs"));
  const fs::path folder = desk / "lab_runs" / "replaced";
  CHECK_THAT(content(folder / "accumulation.json"),
             ContainsSubstring("\"replaced\": \"batchnorm stands for layernorm in "));
  CHECK(card_of("--again --report page.md --out " + quoted(folder)) == layer);
  CHECK_THAT(content(desk / "page.md"),
             ContainsSubstring("**Replaced:** batchnorm stands for layernorm in "));
}

TEST_CASE("norm_lab_says_at_once_what_runs") {
  const Desk desk;
  const auto says = [&](const std::string& options, const std::string& line) {
    const pid_t child = start(desk, NORM_LAB " --data text.txt --out lab --threads 1 " + options);
    const auto said = [&] { return content(desk / "err").find(line) != std::string::npos; };
    for (int i = 0; i < 1000 && !said(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(child, SIGKILL);
    status_of(child);
    CHECK_THAT(content(desk / "err"), ContainsSubstring(line));
  };
  says("--grid depth=1,steps=1000000", "layernorm pre, depth 1, lr 0.001, seed 1 ...\n");
  CHECK(!fs::exists(desk / "lab" / "grid.csv"));
  says("warmup", "warmup ...\n");
  CHECK(!fs::exists(desk / "lab" / "warmup.csv"));
}

TEST_CASE("a_grid_that_was_killed_goes_on_and_one_that_is_in_use_is_refused") {
  const Desk desk;
  const std::string grid = NORM_LAB
      " --data text.txt --out grid --threads 1 --seeds 3 --grid "
      "norms=layernorm,rmsnorm,batchnorm,depth=1,batch=1,steps=";
  const pid_t child = start(desk, grid + "60");
  wait_for(desk / "grid" / "grid.csv");
  const Outcome second = desk.run(grid + "1");
  CHECK_THAT(second.err, ContainsSubstring("in use by another process"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  write_bytes(desk / "grid" / "grid.csv.tmp-1-2", "torn");
  const Outcome resumed = desk.run(grid + "60");
  CAPTURE(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, !ContainsSubstring("0 of 9 runs are done"));
  CHECK(!fs::exists(desk / "grid" / "grid.csv.tmp-1-2"));
  const std::string table = content(desk / "grid" / "grid.csv");
  CHECK(std::ranges::count(table, '\n') == 10);
  CHECK_THAT(desk.run(grid + "60").err, ContainsSubstring("9 of 9 runs are done"));

  const auto refused = [&](const std::string& bytes, const std::string& word) {
    write_bytes(desk / "grid" / "grid.csv", bytes);
    const Outcome outcome = desk.run(grid + "60");
    CHECK(outcome.status > 0);
    CHECK_THAT(outcome.err, ContainsSubstring("grid.csv") && ContainsSubstring(word));
    CHECK(content(desk / "grid" / "grid.csv") == bytes);
  };
  refused(table.substr(0, table.size() - 5), "cut off");
  refused("garbage", "cut off");
  refused("", "no header");
  refused("a,b\n1,2\n", "another --out");
  const std::string header = table.substr(0, table.find('\n') + 1);
  refused(header + "layernorm,pre,1,0.001,0,1,0,60,1,text,x,y,7,z\n", "another --out");
}
