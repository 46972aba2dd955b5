// train_gpt and generate as their user meets them: options, errors, interruption, and what a run
// leaves behind.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

#include "tests/desk.h"

using namespace tapeformer;
namespace fs = std::filesystem;

TEST_CASE("train_gpt_ends_with_the_validation_loss_and_leaves_a_run") {
  const Desk desk;
  const Outcome outcome = desk.train("--out run --steps 4");
  CHECK(outcome.status == 0);
  double loss = 0, perplexity = 0;
  int steps = 0;
  const std::string line = Desk::last_line(outcome.out);
  CAPTURE(line, outcome.err);
  REQUIRE(std::sscanf(line.c_str(), "final validation loss %lf (perplexity %lf) after %d steps",
                      &loss, &perplexity, &steps) == 3);
  CHECK(steps == 4);
  CHECK(perplexity == Approx(std::exp(loss)).epsilon(1e-3));
  for (const char* name : {"model.safetensors", "best.safetensors", "training-4.safetensors",
                           "metrics.jsonl", "curves.svg"})
    CHECK(fs::exists(desk / "run" / name));
}

TEST_CASE("generate_needs_only_the_checkpoint_and_repeats_itself_by_seed") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  fs::remove(desk / "text.txt");
  const Outcome one = desk.generate("--prompt The --tokens 30 --seed 1");
  CHECK(one.status == 0);
  CHECK(one.out.starts_with("The"));
  CHECK(one.out.size() == 3 + 30 + 1);
  CHECK(one.out == desk.generate("--prompt The --tokens 30 --seed 1").out);
  for (const char* option : {"--seed 2", "--seed 1 --temperature 0.1", "--seed 1 --top-k 1",
                             "--seed 1 --top-p 0.05", "--seed 1 --tokens 29"}) {
    CAPTURE(option);
    CHECK(one.out != desk.generate("--prompt The --tokens 30 " + std::string(option)).out);
  }
  CHECK(desk.generate("--prompt The --temperature 0 --seed 1").out ==
        desk.generate("--prompt The --temperature 0 --seed 2").out);
}

TEST_CASE("every_option_of_train_gpt_moves_something") {
  const Desk desk;
  const std::string plain = desk.trace("");
  for (const char* option : {"--layers 2",
                             "--heads 4",
                             "--kv-heads 1",
                             "--channels 16",
                             "--context 4",
                             "--batch 3",
                             "--accumulate 2",
                             "--steps 3",
                             "--stop-after 3",
                             "--lr 1e-2",
                             "--min-lr 5e-4",
                             "--warmup 1",
                             "--schedule linear",
                             "--beta1 0.5",
                             "--beta2 0.5",
                             "--weight-decay 50",
                             "--clip 0.01",
                             "--dropout 0.5",
                             "--norm rmsnorm",
                             "--norm none",
                             "--placement post",
                             "--placement parallel",
                             "--placement residual-dual",
                             "--placement deepnorm",
                             "--placement rezero",
                             "--initialization xavier",
                             "--position rotary",
                             "--position sinusoidal",
                             "--position alibi",
                             "--position none",
                             "--activation relu",
                             "--activation swiglu",
                             "--qk-norm",
                             "--untied",
                             "--hidden 8",
                             "--tokenizer byte",
                             "--dtype f64",
                             "--seed 2",
                             "--eval-every 1",
                             "--eval-batches 2",
                             "--bias --lr 0.1",
                             "--lines"}) {
    CAPTURE(option);
    CHECK(desk.trace(option) != plain);
  }
  CHECK(desk.trace("--threads 2") == plain);  // but not this one
}

TEST_CASE("options_come_from_a_file_too") {
  const Desk desk;
  write_bytes(desk / "options.ini", "norm=rmsnorm\nlr=0.01\nqk-norm=true\n");
  CHECK(desk.trace("--config options.ini") == desk.trace("--norm rmsnorm --lr 0.01 --qk-norm"));
}

TEST_CASE("a_stopped_run_resumes_to_the_same_bits") {
  const Desk desk;
  REQUIRE(desk.train("--out whole --steps 8 --dropout 0.1").status == 0);
  const Outcome stopped = desk.train("--out parts --steps 8 --dropout 0.1 --stop-after 3");
  CHECK_THAT(stopped.out, ContainsSubstring(" --resume parts\n"));
  // Everything but the folder comes from the checkpoint, the data's path included.
  REQUIRE(desk.run(TRAIN_GPT " --resume parts --threads 2").status == 0);
  CHECK(content(desk / "whole" / "model.safetensors") ==
        content(desk / "parts" / "model.safetensors"));
  CHECK_THAT(desk.run(TRAIN_GPT " --resume parts --device cuda:77").err,
             ContainsSubstring("cuda:77 cannot be used"));  // where a run goes on is not kept
  const Outcome other = desk.run(TRAIN_GPT " --out parts --resume --lr 0.5");
  CHECK(other.status != 0);
  CHECK_THAT(other.err, ContainsSubstring("--lr 0.5") && ContainsSubstring("new run"));
}

TEST_CASE("a_folder_with_a_run_is_refused_unless_told_otherwise") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 2").status == 0);
  const Outcome refused = desk.train("--out run --steps 2");
  CHECK(refused.status != 0);
  CHECK_THAT(refused.err, ContainsSubstring("--resume") && ContainsSubstring("--overwrite"));
  CHECK(desk.train("--out run --steps 2 --overwrite --accumulate 0").status != 0);
  CHECK(has_checkpoint(desk / "run"));  // a mistake costs nothing
  CHECK(desk.train("--out run --steps 2 --overwrite").status == 0);
  REQUIRE(desk.train("--steps 1").status == 0);
  REQUIRE(desk.train("--steps 1").status == 0);
  CHECK(has_checkpoint(desk / "runs/1"));
  CHECK(has_checkpoint(desk / "runs/2"));
}

TEST_CASE("mistakes_get_a_message_that_names_the_cure") {
  const Desk desk;
  write_bytes(desk / "empty.txt", "");
  write_bytes(desk / "short.txt", "too short");
  REQUIRE(desk.train("--out run --steps 1").status == 0);
  const auto refused = [&](const std::string& options, std::vector<std::string> words) {
    CAPTURE(options);
    const Outcome outcome = desk.run(TRAIN_GPT + Desk::small() + " --out new " + options);
    CHECK(outcome.status != 0);
    CHECK(!fs::exists(desk / "new"));
    for (const std::string& word : words) CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  refused("--data missing.txt", {"missing.txt"});
  refused("--data empty.txt", {"empty.txt", "empty"});
  refused("--data short.txt --context 64", {"short.txt", "64", "lower context"});
  refused("--data text.txt --heads 3", {"8 channels", "3 heads"});
  refused("--data text.txt --norm batch", {"'batch'", "rmsnorm"});
  refused("--data text.txt --placement up", {"'up'", "parallel"});
  refused("--data text.txt --schedule up", {"up", "cosine"});
  refused("--data text.txt --learning-rate 3", {"--learning-rate"});
  refused("--data text.txt --device cuda", {"cuda", "cpu"});
  refused("--data text.txt --dtype half", {"half", "f32", "bf16", "f16"});
  refused("--data text.txt --batch 0", {"0"});
  refused("--data text.txt --accumulate 0", {"accumulate", "0"});
  refused("--data text.txt --resume nowhere", {"nowhere"});

  const Outcome unknown = desk.generate("--prompt 'ü'");
  CHECK(unknown.status != 0);
  CHECK_THAT(unknown.err, ContainsSubstring("U+00FC") && ContainsSubstring("--tokenizer byte"));
  CHECK(desk.generate("--temperature -1").status != 0);
}

TEST_CASE("a_config_file_with_an_unknown_key_is_refused") {
  const Desk desk;
  write_bytes(desk / "options.ini", "layerz=6\n");
  const Outcome outcome = desk.train("--out new --steps 1 --config options.ini");
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, ContainsSubstring("layerz"));
}

TEST_CASE("a_run_in_f64_resumes_and_generates") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 2 --dtype f64 --lr 1e-3 --stop-after 1").status == 0);
  CHECK(desk.run(TRAIN_GPT " --resume run --lr 0.001").status == 0);  // the same number
  CHECK(desk.generate("--prompt The --tokens 5").status == 0);
}

TEST_CASE("a_loss_beyond_all_numbers_keeps_the_last_good_checkpoint") {
  const Desk desk;
  const Outcome outcome =
      desk.train("--out run --steps 9 --lr 1e38 --warmup 0 --eval-every 0 --save-every 1");
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, ContainsSubstring("step"));
  CHECK(desk.generate("--prompt The --tokens 5").status == 0);
}

TEST_CASE("a_checkpoint_of_another_configuration_is_refused") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 1").status == 0);
  REQUIRE(desk.train("--out other --steps 1 --layers 2").status == 0);
  fs::copy_file(desk / "other/training-1.safetensors", desk / "run/training-1.safetensors",
                fs::copy_options::overwrite_existing);
  const Outcome outcome = desk.run(TRAIN_GPT " --resume run");
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, ContainsSubstring("belongs to another"));
}

TEST_CASE("the_doctor_reports_every_parameter") {
  const Desk desk;
  const Outcome outcome = desk.train("--doctor");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, ContainsSubstring("token_embedding.weight") &&
                              ContainsSubstring("blocks.0.norm2.bias"));
  CHECK(!fs::exists(desk / "runs"));
}

namespace {

// Starts a long run in the desk's folder `run`, in a process of its own, which ignores SIGHUP or
// not whatever these tests were started by.
pid_t start(const Desk& desk, bool resume, bool ignores_hangup = false) {
  const pid_t child = fork();
  if (child != 0) return child;
  std::signal(SIGHUP, ignores_hangup ? SIG_IGN : SIG_DFL);
  if (chdir(desk.path.c_str()) != 0 || !freopen("out", "w", stdout) || !freopen("err", "w", stderr))
    _exit(127);
  if (resume)
    execl(TAPEFORMER_TRAIN_GPT, "train_gpt", "--resume", "run", nullptr);
  else
    execl(
        "/bin/sh", "sh", "-c",
        (std::string("exec " TRAIN_GPT " --data text.txt --out run --steps 100000") + Desk::small())
            .c_str(),
        nullptr);
  _exit(127);
}

void wait_for_step(const Desk& desk, int64_t step) {
  for (int i = 0; i < 2000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!has_checkpoint(desk / "run")) continue;
    if (read_model_file(desk / "run").step >= step) return;
  }
  FAIL("the run made no checkpoint of step " << step << ": " << content(desk / "err"));
}

}  // namespace

TEST_CASE("kill_9_leaves_a_checkpoint_that_resumes") {
  const Desk desk;
  int64_t step = 0;
  for (int round = 0; round < 5; ++round) {
    const pid_t child = start(desk, round > 0);
    wait_for_step(desk, step + 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const int64_t saved = read_model_file(desk / "run").step;
    CHECK(saved > step);
    step = saved;
  }
  const Outcome outcome =
      desk.run(TRAIN_GPT " --resume run --stop-after " + std::to_string(step + 1));
  CAPTURE(outcome.err);
  CHECK(outcome.status == 0);
}

TEST_CASE("a_run_goes_on_without_its_terminal_where_it_was_told_to") {
  const Desk desk;
  const pid_t child = start(desk, false, true);
  wait_for_step(desk, 1);
  kill(child, SIGHUP);
  wait_for_step(desk, read_model_file(desk / "run").step + 2);
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
}

TEST_CASE("a_request_to_end_saves_at_once_and_says_how_to_go_on") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const Desk desk;
    const pid_t child = start(desk, false);
    wait_for_step(desk, 2);
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    const std::string out = content(desk / "out");
    CHECK_THAT(out, ContainsSubstring(" --resume run\n"));
    CHECK_THAT(out, !ContainsSubstring("A sample") && !ContainsSubstring("final validation loss"));
    const auto metrics = read_metrics(desk / "run" / "metrics.jsonl");
    CHECK(read_model_file(desk / "run").step == metrics.back().step);
  }
}

TEST_CASE("a_request_to_end_ends_a_validation_that_is_under_way") {
  const Desk desk;
  std::string text(20'000'000, 'a');  // takes it many seconds
  text.back() = 'b';
  write_bytes(desk / "text.txt", text);
  const pid_t child =
      start(desk, TRAIN_GPT " --data text.txt --out run" + Desk::small() + " --eval-batches 0");
  wait_for(desk / "run" / "model.safetensors");
  kill(child, SIGINT);
  CHECK(status_of(child) == 0);
  CHECK(!fs::exists(desk / "run" / "best.safetensors"));
  CHECK(read_metrics(desk / "run" / "metrics.jsonl").empty());
  CHECK_THAT(content(desk / "out"), ContainsSubstring("stopped      go on with: ") &&
                                        !ContainsSubstring("best.safetensors"));
}

TEST_CASE("the_commands_that_train_gpt_prints_work_where_it_was_called") {
  const Desk desk;
  const Outcome stopped = desk.train("--out 'my run' --steps 4 --stop-after 2");
  CHECK_THAT(stopped.err, ContainsSubstring("; 1 thread; "));
  REQUIRE(desk.run(Desk::after(stopped.out, "\nstopped      go on with: ")).status == 0);
  CHECK(read_model_file(desk / "my run").step == 4);
  const Outcome more = desk.run(Desk::after(stopped.out, "\nmore text    "));
  CHECK(more.status == 0);
  CHECK(more.out.starts_with("..."));
}
