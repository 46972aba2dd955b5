// Extensions as their author meets them: the example program, and programs that lack what a
// checkpoint needs or look at what it costs.
#include <nlohmann/json.hpp>
#include <set>

#include "layers/norm.h"
#include "tests/desk.h"
#include "train/language_model.h"
#include "train/model_config.h"
#include "train/trainer.h"

#define CUSTOM_LAYER "'" TAPEFORMER_CUSTOM_LAYER "'"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

TEST_CASE("the_custom_layer_passes_its_own_checks_and_trains") {
  const Desk desk;
  const Outcome outcome = desk.run("OMP_NUM_THREADS=1 " CUSTOM_LAYER);  // for a busy machine
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.status == 0);
  for (const char* what : {"operation", "layer", "norm", "optimizer", "training"})
    CHECK_THAT(outcome.out, ContainsSubstring("ok      " + std::string(what) + ": "));
  std::vector<double> losses;
  double loss = 0;
  int step = 0;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);)
    if (std::sscanf(line.c_str(), "step %d loss %lf", &step, &loss) == 2) losses.push_back(loss);
  REQUIRE(losses.size() == 6);
  CHECK(std::ranges::is_sorted(losses, std::greater()));
}

// ---------------------------------------------------------------- a norm that is not linked in

struct Halving : Norm {
  Tensor weight = make_parameter({1}, 0.5);
  Tensor forward(const Tensor& x, const NormContext&) override { return weight * x; }
  void visit(Visitor& visitor) override { visitor.parameter("weight", weight); }
};

TEST_CASE("a_checkpoint_whose_norm_is_not_linked_in_names_it") {
  register_norm("halving", [](int64_t) { return std::make_unique<Halving>(); });
  const Desk desk;
  const Text text(content(desk / "text.txt"), "text");
  const auto tokenizer = make_tokenizer("character", text.view());
  const TextCorpus corpus(text, *tokenizer, {.rows = 2, .context = 8});
  const TransformerConfig config{.vocabulary = tokenizer->vocabulary_size(),
                                 .context = 8,
                                 .layers = 1,
                                 .heads = 2,
                                 .channels = 8,
                                 .norm = "halving"};
  GPT model(config);
  TrainOptions options;
  options.schedule.steps = 2;
  options.out = desk / "run";
  options.description = {to_json(config), tokenizer->to_json(), "{}"};
  Trainer(model, corpus, options).run(0, {});

  CHECK(load_language_model(desk / "run").model->config().norm == "halving");  // here it is known
  const Outcome outcome = desk.generate("--prompt The");
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, ContainsSubstring("run") && ContainsSubstring("the norm 'halving'") &&
                              ContainsSubstring("register_norm") && ContainsSubstring("rmsnorm"));
}

// ---------------------------------------------------------------- --doctor and --profile

TEST_CASE("the_doctor_says_of_a_healthy_model_that_it_is") {
  const Desk desk;
  const Outcome outcome = desk.train("--doctor");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, ContainsSubstring("moved") && ContainsSubstring("every parameter was"));
  CHECK_THAT(outcome.out, !ContainsSubstring("all zero"));
}

TEST_CASE("profiling_prints_a_table_writes_a_trace_and_trains_nothing") {
  const Desk desk;
  const Outcome outcome = desk.train("--profile 'my trace.json' --accumulate 2 --layers 2");
  CAPTURE(outcome.err);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, ContainsSubstring("\nlinear ") && ContainsSubstring("\nattention ") &&
                              ContainsSubstring("\nclipping and AdamW ") &&
                              ContainsSubstring("\none step ") &&
                              ContainsSubstring("my trace.json"));
  CHECK(!fs::exists(desk / "runs"));
  const auto trace = nlohmann::json::parse(content(desk / "my trace.json"));
  std::set<std::string> kinds;
  int attentions = 0;
  for (const auto& event : trace.at("traceEvents")) {
    CHECK(event.at("ph") == "X");
    kinds.insert(event.at("cat"));
    attentions += event.at("name") == "attention" && event.at("cat") == "forward";
  }
  CHECK(kinds == std::set<std::string>{"forward", "backward", "part", "step"});
  CHECK(attentions == 5 * 2 * 2);  // steps, micro-batches, layers
}

TEST_CASE("profiling_a_run_takes_its_options_and_leaves_it_alone") {
  const Desk desk;
  REQUIRE(desk.train("--out run --steps 2 --norm rmsnorm").status == 0);
  const std::string before = content(desk / "run" / "model.safetensors");
  const Outcome outcome = desk.run(TRAIN_GPT " --resume run --profile trace.json");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, ContainsSubstring("\nadd_rms_norm "));
  CHECK(content(desk / "run" / "model.safetensors") == before);
}

TEST_CASE("profiling_refuses_what_does_not_go_with_it") {
  const Desk desk;
  const auto refused = [&](const std::string& options, const std::string& words) {
    CAPTURE(options);
    const Outcome outcome = desk.train(options);
    CHECK(outcome.status != 0);
    CHECK_THAT(outcome.err, ContainsSubstring(words));
  };
  refused("--profile a.json --doctor", "--profile");
  refused("--profile a.json --leak-test", "--profile");
  refused("--profile a.json --prefix-eval 1", "--profile exits before training");
  refused("--profile a.json --inspect-every 1", "--profile exits before training");
  refused("--profile ''", "--profile");
  refused("--profile nowhere/a.json", "nowhere");
  refused("--profile a.json --accumulate 0", "accumulate");
  CHECK(!fs::exists(desk / "a.json"));
}

}  // namespace
}  // namespace tapeformer
