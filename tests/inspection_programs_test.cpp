// The options of train_gpt for looking inside, as their user meets them.
#include <cmath>
#include <cstdio>

#include "tests/desk.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

int times(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// The line of `text` that begins with `start`.
std::string line_of(const std::string& text, const std::string& start) {
  const size_t begin = text.find("\n" + start);
  if (begin == std::string::npos) return "";
  return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

struct Losses {
  double first = NAN, second = NAN;
};

Losses prefix_losses(const std::string& out) {
  Losses losses;
  std::sscanf(line_of(out, "prefix evaluation").c_str(),
              "prefix evaluation, validation loss: teacher-forced %lf, prefix by prefix %lf",
              &losses.first, &losses.second);
  return losses;
}

}  // namespace

TEST_CASE("the_leak_test_option_reports_both_modes_and_trains_nothing") {
  const Desk desk;
  const Outcome clean = desk.train("--leak-test --placement rezero");
  CHECK(clean.status == 0);
  CHECK(times(clean.out, "LEAKS") == 0);
  CHECK(times(clean.out, "no leak") == 4);
  const Outcome batch = desk.train("--leak-test --norm batchnorm");
  CHECK(batch.status == 0);
  CHECK(times(batch.out, "LEAKS later tokens") == 1);  // in training, not outside
  CHECK(times(batch.out, "LEAKS other samples") == 1);
  const Outcome time = desk.train("--leak-test --norm layernorm-time");
  CHECK(times(time.out, "LEAKS later tokens") == 2);
  CHECK(times(time.out, "LEAKS other samples") == 0);
  CHECK(!fs::exists(desk / "runs"));
}

TEST_CASE("the_leak_test_of_a_run_tests_its_weights_and_leaves_it_alone") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 2 --norm batchnorm --batch 1 --lines").status == 0);
  const std::string before = content(desk / "run" / "model.safetensors");
  const Outcome trained = desk.run(TRAIN_GPT " --resume run --leak-test");
  CAPTURE(trained.err);
  CHECK(trained.status == 0);
  CHECK_THAT(trained.out,
             ContainsSubstring("The trained model") && ContainsSubstring("LEAKS later tokens"));
  CHECK(content(desk / "run" / "model.safetensors") == before);
  const Outcome fresh = desk.train("--norm batchnorm --batch 1 --lines --leak-test");
  CHECK(line_of(fresh.out, "training") != line_of(trained.out, "training"));
}

TEST_CASE("inspecting_writes_profiles_and_changes_no_bit_of_the_run") {
  const Desk desk;
  for (const std::string norm : {"batchnorm", "layernorm"}) {
    const std::string options = "--steps 6 --dropout 0.1 --norm " + norm;
    REQUIRE(desk.train("--overwrite --out plain " + options).status == 0);
    REQUIRE(desk.train("--overwrite --out whole --inspect-every 2 " + options).status == 0);
    REQUIRE(
        desk.train("--overwrite --out parts --inspect-every 2 --stop-after 3 " + options).status ==
        0);
    REQUIRE(desk.run(TRAIN_GPT " --resume parts").status == 0);
    for (const std::string run : {"whole", "parts"}) {
      CAPTURE(norm, run);
      // What a run is, and so its options, are in the model file too: the rest must be equal.
      const std::string plain = content(desk / "plain" / "model.safetensors");
      const std::string other = content(desk / run / "model.safetensors");
      REQUIRE(plain.size() > 3000);
      CHECK(plain.substr(plain.size() - 3000) == other.substr(other.size() - 3000));
      CHECK(fs::exists(desk / run / "profile.svg"));
      std::vector<int64_t> steps;
      for (const Metrics& m : read_metrics(desk / run / "metrics.jsonl")) {
        if (m.stream_rms.empty()) continue;
        steps.push_back(m.step);
        CHECK(m.stream_rms.size() == 2);
        CHECK(m.gradient_norms.size() > 8);
        CHECK(m.tid.size() == (norm == "batchnorm" ? 3 : 0));
      }
      CHECK(steps == std::vector<int64_t>{0, 2, 4, 6});
    }
    CHECK(!fs::exists(desk / "plain" / "profile.svg"));
  }
}

TEST_CASE("the_prefix_loss_is_the_other_loss_but_for_a_norm_along_time") {
  const Desk desk;
  const Losses clean = prefix_losses(desk.train("--out a --steps 2 --prefix-eval 2").out);
  CHECK(clean.first == Approx(clean.second).epsilon(1e-4));
  const Outcome leaky = desk.train(
      "--out b --steps 20 --lr 1e-2 --prefix-eval 2"
      " --norm layernorm-time");
  const Losses apart = prefix_losses(leaky.out);
  CHECK(apart.first != apart.second);
  const Losses more = prefix_losses(desk.run(TRAIN_GPT " --resume b --prefix-eval 3").out);
  CHECK(more.first != apart.first);
  CHECK(prefix_losses(desk.run(TRAIN_GPT " --resume b").out).first !=
        prefix_losses(leaky.out).first);  // without the option there is none: NaN
}

TEST_CASE("recalibrating_prints_three_losses_and_keeps_the_checkpoint") {
  const Desk desk;
  const std::string options = "--overwrite --out run --steps 3 --norm batchnorm";
  const Outcome plain = desk.train(options);
  const std::string checkpoint = content(desk / "run" / "model.safetensors");
  const auto line = [&](const std::string& more) {
    const Outcome outcome = desk.train(options + more);
    CHECK(Desk::last_line(outcome.out) == Desk::last_line(plain.out));
    CHECK(content(desk / "run" / "model.safetensors") == checkpoint);
    return line_of(outcome.out, "batch statistics");
  };
  double running = 0, batch = 0, recalibrated = 0;
  long long batches = 0;
  const std::string of_one = line(" --recalibrate 1"), of_four = line(" --recalibrate 4");
  REQUIRE(std::sscanf(of_four.c_str(),
                      "batch statistics, validation loss: running %lf, of the batch %lf, "
                      "recalibrated on %lld training batches %lf",
                      &running, &batch, &batches, &recalibrated) == 4);
  CHECK(batches == 4);
  CHECK(running != batch);
  CHECK(running != recalibrated);
  CHECK(of_one.substr(of_one.rfind(' ')) != of_four.substr(of_four.rfind(' ')));
  CHECK(line("") == "");
}

TEST_CASE("float16_norms_are_evaluated_side_by_side") {
  const Desk desk;
  const Outcome outcome = desk.train("--out run --steps 2 --norm rmsnorm --float16-norms");
  CAPTURE(outcome.err);
  CHECK(outcome.status == 0);
  for (const char* name :
       {"rmsnorm ", "rmsnorm-float16 ", "rmsnorm-float16-clamp ", "rmsnorm-float16-f32stats "})
    CHECK(line_of(outcome.out, name) != "");
  const Outcome resumed = desk.run(TRAIN_GPT " --resume run --float16-norms");
  CHECK(line_of(resumed.out, "rmsnorm-float16 ") == line_of(outcome.out, "rmsnorm-float16 "));
  CHECK(line_of(desk.run(TRAIN_GPT " --resume run").out, "rmsnorm-float16") == "");
}

TEST_CASE("a_norm_that_leaks_gets_exactly_one_warning") {
  const Desk desk;
  const auto warning = [&](const std::string& command) {
    const Outcome outcome = desk.run(command);
    CAPTURE(outcome.err);
    CHECK(outcome.status == 0);
    CHECK(times(outcome.err, "warning") <= 1);
    return line_of("\n" + outcome.err, "warning");
  };
  const auto fresh = [&](const std::string& norm) {
    return warning(TRAIN_GPT " --data text.txt --out " + norm + " --steps 1 --norm " + norm +
                   Desk::small());
  };
  CHECK_THAT(fresh("batchnorm"), ContainsSubstring("'batchnorm'") &&
                                     ContainsSubstring("other samples") &&
                                     !ContainsSubstring("without the key-value cache"));
  CHECK_THAT(fresh("layernorm-time"),
             ContainsSubstring("'layernorm-time'") && ContainsSubstring("later time steps") &&
                 !ContainsSubstring("samples") && ContainsSubstring("without the key-value cache"));
  CHECK(fresh("layernorm") == "");
  CHECK(fresh("dyt") == "");
  CHECK_THAT(warning(TRAIN_GPT " --resume batchnorm"), ContainsSubstring("'batchnorm'"));
  CHECK(warning(TRAIN_GPT " --resume layernorm") == "");
}

TEST_CASE("options_for_looking_inside_that_cannot_go_together_are_refused") {
  const Desk desk;
  const auto refused = [&](const std::string& options, std::vector<std::string> words) {
    CAPTURE(options);
    const Outcome outcome = desk.train("--out new " + options);
    CHECK(outcome.status != 0);
    CHECK(!fs::exists(desk / "new"));
    for (const std::string& word : words) CHECK_THAT(outcome.err, ContainsSubstring(word));
  };
  refused("--leak-test --doctor", {"--doctor", "--leak-test"});
  refused("--leak-test --prefix-eval 1", {"--leak-test exits before training"});
  refused("--leak-test --inspect-every 1", {"--leak-test exits before training"});
  refused("--doctor --float16-norms", {"--doctor exits before training"});
  refused("--doctor --recalibrate 1 --norm batchnorm", {"--doctor exits before training"});
  refused("--recalibrate 2", {"'layernorm'", "keeps no running statistics", "batchnorm"});
  refused("--recalibrate 2 --norm batchnorm --placement rezero", {"'rezero'"});
  refused("--float16-norms --norm batchnorm", {"not of 'batchnorm'", "rmsnorm"});
  refused("--prefix-eval -1", {"--prefix-eval", "-1"});
  refused("--recalibrate -1", {"--recalibrate", "-1"});
  refused("--inspect-every -1", {"inspect_every", "-1"});
}

TEST_CASE("the_help_lists_what_looks_inside_under_one_heading") {
  const Desk desk;
  const std::string help = desk.run(TRAIN_GPT " --help").out;
  const size_t heading = help.find("Looking inside:");
  REQUIRE(heading != std::string::npos);
  for (const char* option :
       {"--leak-test", "--inspect-every", "--prefix-eval", "--recalibrate", "--float16-norms"})
    CHECK(help.find(option, heading) != std::string::npos);
}
