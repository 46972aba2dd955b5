// train_gpt and generate in 16 bits: what looks inside a model, what a run leaves behind.
#include "tests/desk.h"

using namespace tapeformer;

namespace {

const std::vector<std::string> dtypes = {"bf16", "f16"};

}  // namespace

TEST_CASE("profiles_by_layer_of_a_model_in_16_bits_are_those_of_f32") {
  const Desk desk;
  const auto profile = [&](const std::string& dtype, const std::string& options) {
    const Outcome outcome = desk.train(
        "--overwrite --out run --steps 1 --inspect-every 1 --dtype " + dtype + " " + options);
    CAPTURE(outcome.err);
    REQUIRE(outcome.status == 0);
    for (const Metrics& metrics : read_metrics(desk / "run" / "metrics.jsonl"))
      if (!metrics.stream_rms.empty()) return metrics;
    FAIL("no profile");
    return Metrics();
  };
  for (const std::string options : {"", "--norm batchnorm --placement post", "--lines --bias"}) {
    const Metrics f32 = profile("f32", options);
    for (const std::string& dtype : dtypes) {
      CAPTURE(options, dtype);
      const Metrics other = profile(dtype, options);
      REQUIRE(other.stream_rms.size() == f32.stream_rms.size());
      for (size_t i = 0; i < f32.stream_rms.size(); ++i)
        CHECK(other.stream_rms[i] == Approx(f32.stream_rms[i]).epsilon(0.02));
      REQUIRE(other.gradient_norms.size() == f32.gradient_norms.size());
      for (size_t i = 0; i < f32.gradient_norms.size(); ++i) {
        CAPTURE(f32.gradient_norms[i].name);
        CHECK(other.gradient_norms[i].value ==
              Approx(f32.gradient_norms[i].value).epsilon(0.05).margin(1e-4));
      }
    }
  }
}

TEST_CASE("every_report_of_train_gpt_goes_with_16_bits") {
  const Desk desk;
  for (const std::string& dtype : dtypes) {
    for (const char* option :
         {"--doctor", "--leak-test", "--profile trace.json", "--steps 2 --prefix-eval 1",
          "--steps 2 --recalibrate 1 --norm powernorm", "--steps 2 --float16-norms"}) {
      const Outcome outcome =
          desk.train("--overwrite --out run --accumulate 2 --dtype " + dtype + " " + option);
      CAPTURE(dtype, option, outcome.err);
      CHECK(outcome.status == 0);
      CHECK_THAT(outcome.out, !ContainsSubstring("nan") && !ContainsSubstring("inf"));
    }
  }
}

TEST_CASE("a_run_in_16_bits_can_be_tested_gone_on_with_and_sampled_but_not_changed") {
  const Desk desk;
  for (const std::string& dtype : dtypes) {
    const std::string run = "run-" + dtype;
    REQUIRE(desk.train("--steps 4 --stop-after 2 --out " + run + " --dtype " + dtype).status == 0);
    const Outcome leak = desk.run(TRAIN_GPT " --leak-test --resume " + run);
    CAPTURE(dtype, leak.err);
    CHECK(leak.status == 0);
    CHECK_THAT(leak.out, ContainsSubstring("The trained model"));
    const Outcome other = desk.run(TRAIN_GPT " --dtype f32 --resume " + run);
    CHECK(other.status != 0);
    CHECK_THAT(other.err, ContainsSubstring("has " + dtype));
    CHECK(desk.run(TRAIN_GPT " --prefix-eval 1 --resume " + run).status == 0);
    CHECK(desk.run(GENERATE_TEXT " --seed 1 --tokens 20 --checkpoint " + run).status == 0);
  }
}
