// Checkpoints: nothing is lost, whenever a run is killed, and files are whole or not there.
#include "train/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "optim/optimizer.h"
#include "tests/catch.h"
#include "tests/locale_with_comma.h"
#include "tests/temporary_folder.h"
#include "train/files.h"
#include "train/safetensors.h"

using namespace tapeformer;

namespace {

struct Small : Module {
  explicit Small(int64_t width, double value = 0)
      : weight(make_parameter({3, width}, value)),
        bias(make_parameter({3}, value)),
        mean(Tensor::full({2}, value, DType::f64)) {}
  void visit(Visitor& visitor) override {
    visitor.parameter("weight", weight);
    visitor.parameter("bias", bias);
    visitor.buffer("mean", mean);
  }
  Tensor weight, bias, mean;
};

// A model with its optimizer, all of whose numbers are `value`.
struct Run {
  explicit Run(double value = 0, int64_t width = 5)
      : model(width, value), parameters(model), optimizer(parameters) {
    set(value);
  }
  void set(double value) {
    for (const NamedTensor& entry : named_tensors(model)) entry.tensor.fill(value);
    optimizer.visit_state([&](const std::string&, const Tensor& tensor) { tensor.fill(value); });
    optimizer.set_steps(static_cast<int64_t>(value));
  }
  // The value that every number has; throws when they differ.
  double value() {
    const double first = model.mean.to_vector<double>()[0];
    const auto compare = [&](const Tensor& tensor) {
      const auto expected = Tensor::full(tensor.shape(), first, tensor.dtype());
      check(std::memcmp(tensor.raw(), expected.raw(), tensor.bytes()) == 0, "values differ");
    };
    for (const NamedTensor& entry : named_tensors(model)) compare(entry.tensor);
    optimizer.visit_state([&](const std::string&, const Tensor& tensor) { compare(tensor); });
    check(optimizer.steps() == static_cast<int64_t>(first), "steps differ");
    return first;
  }
  void save(const std::filesystem::path& folder, int64_t step) {
    TrainingState state;
    state.step = step;
    save_checkpoint(folder, {.config = "{}", .tokenizer = "[]", .run = "{\"steps\": 9}"}, model,
                    optimizer, state);
  }
  TrainingState load(const std::filesystem::path& folder) {
    load_model(folder, model);
    return load_training(folder, optimizer);
  }
  Small model;
  Parameters parameters;
  AdamW optimizer;
};

std::string name_of_training(int64_t step) {
  return "training-" + std::to_string(step) + ".safetensors";
}

}  // namespace

TEST_CASE("checkpoint_restores_every_bit") {
  const TemporaryFolder folder;
  const LocaleWithComma locale;
  Run run(1.0);
  TrainingState state;
  state.step = 1234;
  state.seed = UINT64_MAX;
  state.best_loss = 0.1 + 0.2;
  state.best_step = 1200;
  state.evaluations_without_gain = 3;
  run.optimizer.set_steps(1233);
  const ModelFile description{.config = "{\"layers\": 2}", .tokenizer = "\"abc\"", .run = "{}"};
  save_checkpoint(folder / "new", description, run.model, run.optimizer, state);

  const ModelFile read = read_model_file(folder / "new");
  CHECK(read.config == description.config);
  CHECK(read.tokenizer == description.tokenizer);
  CHECK(read.run == description.run);
  CHECK(read.step == 1234);
  Run other(2.0);
  const TrainingState restored = other.load(folder / "new");
  CHECK(other.optimizer.steps() == 1233);
  other.optimizer.set_steps(1);
  CHECK(other.value() == 1.0);
  CHECK(restored.step == 1234);
  CHECK(restored.optimizer_steps == 1233);
  CHECK(restored.seed == UINT64_MAX);
  CHECK(restored.best_loss == 0.1 + 0.2);
  CHECK(restored.best_step == 1200);
  CHECK(restored.evaluations_without_gain == 3);
}

TEST_CASE("checkpoint_keeps_the_bits_of_special_losses") {
  const TemporaryFolder folder;
  Run run;
  for (const double loss : {std::numeric_limits<double>::infinity(), -0.0, 5e-324, 1e-310,
                            std::numeric_limits<double>::max(), 1.0 / 3}) {
    TrainingState state;
    state.best_loss = loss;
    save_checkpoint(folder.path, {}, run.model, run.optimizer, state);
    const double read = load_training(folder.path, run.optimizer).best_loss;
    CHECK(std::memcmp(&read, &loss, sizeof loss) == 0);
  }
}

TEST_CASE("checkpoint_leaves_two_files_and_no_others") {
  const TemporaryFolder folder;
  CHECK_FALSE(has_checkpoint(folder.path));
  CHECK_FALSE(has_checkpoint(folder / "missing"));
  Run run;
  for (const int64_t step : {0, 50, 100}) run.save(folder.path, step);
  CHECK(has_checkpoint(folder.path));
  CHECK(folder.files() == 2);
  CHECK(std::filesystem::exists(folder / name_of_training(100)));
  remove_checkpoint(folder.path);
  CHECK(folder.files() == 0);
  remove_checkpoint(folder.path);
}

TEST_CASE("checkpoint_interrupted_between_its_files_resumes_from_the_former") {
  const TemporaryFolder folder, ahead;
  Run run(50);
  run.save(folder.path, 50);
  run.set(100);
  run.save(ahead.path, 100);
  // The training file of step 100 is there, model.safetensors is still being written.
  std::filesystem::copy(ahead / name_of_training(100), folder / name_of_training(100));
  const std::string bytes = read_file(ahead / "model.safetensors");
  write_bytes(folder / "model.safetensors.tmp-4711-0", bytes.substr(0, bytes.size() / 2));
  write_bytes(folder / "notes.tmp-about this", "not ours");

  Run resumed;
  CHECK(resumed.load(folder.path).step == 50);
  CHECK(resumed.value() == 50);

  // The next checkpoint clears away what the killed run left, and nothing else.
  resumed.set(75);
  resumed.save(folder.path, 75);
  CHECK(Run().load(folder.path).step == 75);
  CHECK(std::filesystem::exists(folder / "notes.tmp-about this"));
  CHECK(folder.files() == 3);
}

TEST_CASE("checkpoint_interrupted_before_it_clears_up_resumes_from_the_new") {
  const TemporaryFolder folder, ahead;
  Run run(50);
  run.save(folder.path, 50);
  run.set(100);
  run.save(ahead.path, 100);
  for (const auto& entry : std::filesystem::directory_iterator(ahead.path))
    std::filesystem::copy(entry.path(), folder.path,
                          std::filesystem::copy_options::overwrite_existing);
  REQUIRE(folder.files() == 3);
  Run resumed;
  CHECK(resumed.load(folder.path).step == 100);
  CHECK(resumed.value() == 100);
}

TEST_CASE("checkpoint_survives_a_kill_at_any_moment") {
  const TemporaryFolder folder;
  Run(0).save(folder.path, 0);
  int64_t last = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {  // saves until it is killed; leaves no other way
      Run run;
      for (int64_t step = last + 1;; ++step) {
        run.set(static_cast<double>(step));
        run.save(folder.path, step);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20'000 + 7'331 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    Run resumed;
    const int64_t step = resumed.load(folder.path).step;
    CHECK(resumed.value() == static_cast<double>(step));
    CHECK(step >= last);
    last = step;
  }
  CHECK(last > 0);
}

TEST_CASE("checkpoint_of_another_configuration_names_the_differences_and_changes_nothing") {
  const TemporaryFolder folder;
  Run(1, 5).save(folder.path, 1);
  Run wider(2, 7);
  CHECK_THROWS_WITH(load_model(folder.path, wider.model),
                    ContainsSubstring("comes from another configuration") &&
                        ContainsSubstring("weight: expected F32 [3, 7], the file has F32 [3, 5]"));
  CHECK(wider.value() == 2);
  CHECK_THROWS_WITH(load_training(folder.path, wider.optimizer),
                    ContainsSubstring("m.weight: expected F32 [3, 7]"));
  CHECK(wider.value() == 2);

  struct Other : Module {
    Tensor bias = make_parameter({3}), gain = make_parameter({4, 2});
    void visit(Visitor& visitor) override {
      visitor.parameter("bias", bias);
      visitor.parameter("gain", gain);
    }
  } other;
  CHECK_THROWS_WITH(load_model(folder / "model.safetensors", other),
                    ContainsSubstring("missing in the file: gain [4, 2]") &&
                        ContainsSubstring("not expected: weight") &&
                        ContainsSubstring("not expected: mean"));
  CHECK(other.bias.to_vector<float>() == std::vector<float>(3, 0.0f));

  SGD sgd(wider.parameters, {.momentum = 0.9});
  CHECK_THROWS_WITH(load_training(folder.path, sgd), ContainsSubstring("another optimizer"));
}

TEST_CASE("checkpoint_lists_a_few_of_many_differences") {
  struct Many : Module {
    std::vector<Tensor> tensors = std::vector<Tensor>(20, make_parameter({1}));
    void visit(Visitor& visitor) override {
      for (size_t i = 0; i < tensors.size(); ++i)
        visitor.parameter("w" + std::to_string(i), tensors[i]);
    }
  } many;
  const TemporaryFolder folder;
  Run(1).save(folder.path, 1);
  CHECK_THROWS_WITH(load_model(folder.path, many), ContainsSubstring("w4 ") &&
                                                       !ContainsSubstring("w5 ") &&
                                                       ContainsSubstring("and 18 more"));
}

TEST_CASE("checkpoint_without_its_training_file_says_what_still_works") {
  const TemporaryFolder folder;
  Run run(8);
  run.save(folder.path, 8);
  std::filesystem::remove(folder / name_of_training(8));
  CHECK_THROWS_WITH(load_training(folder.path, run.optimizer),
                    ContainsSubstring("training-8.safetensors is missing: the model can be used"));
  Run reader;
  load_model(folder.path, reader.model);
  CHECK(reader.model.bias.to_vector<float>() == std::vector<float>(3, 8.0f));
}

TEST_CASE("checkpoint_reader_takes_the_folder_the_file_and_a_model_alone") {
  const TemporaryFolder folder;
  Run run(8);
  run.save(folder.path, 8);
  save_model(folder / "best.safetensors", {.config = "best", .step = 7}, run.model);
  CHECK(read_model_file(folder.path).step == 8);
  CHECK(read_model_file(folder / "model.safetensors").step == 8);
  CHECK(read_model_file(folder / "best.safetensors").step == 7);
  CHECK(read_model_file(folder / "best.safetensors").config == "best");
  CHECK_THROWS_WITH(read_model_file(folder / "none"), ContainsSubstring("No such file"));
}

TEST_CASE("checkpoint_reader_refuses_strange_files_with_a_reason") {
  const TemporaryFolder folder;
  const NamedTensors none;
  const auto objection = [&](const Metadata& metadata) -> std::string {
    save_safetensors(folder / "m", none, metadata);
    try {
      read_model_file(folder / "m");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Metadata metadata = {
      {"format", "tapeformer"}, {"config", ""}, {"tokenizer", ""}, {"run", ""}, {"step", "5"}};
  CHECK(objection(metadata) == "");
  for (const std::string step : {"5x", "", "-", "99999999999999999999", "1.5"}) {
    metadata["step"] = step;
    CHECK_THAT(objection(metadata), ContainsSubstring("\"step\" should be a number"));
  }
  metadata.erase("step");
  CHECK_THAT(objection(metadata), ContainsSubstring("has no \"step\" in its metadata"));
  metadata["format"] = "pt";
  CHECK_THAT(objection(metadata), ContainsSubstring("no checkpoint of this library"));
  CHECK_THAT(objection({}), ContainsSubstring("no checkpoint of this library"));
}

TEST_CASE("file_written_atomically_replaces_the_old_one_or_leaves_it") {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_file_atomically(path, "old");
  write_file_atomically(path, "new\n");
  CHECK(read_file(path) == "new\n");

  const auto broken = [](FileWriter& file) {
    file.write("part");
    throw std::runtime_error("interrupted");
  };
  CHECK_THROWS_WITH(write_file_atomically(path, broken), "interrupted");
  CHECK(read_file(path) == "new\n");
  CHECK(folder.files() == 1);
  CHECK_THROWS_WITH(write_file_atomically(folder / "none" / "file", "text"),
                    ContainsSubstring("none/file: No such file or directory"));
  CHECK_THROWS_WITH(write_file_atomically(folder.path, "text"),
                    ContainsSubstring("cannot replace"));
  CHECK(folder.files() == 1);
}

TEST_CASE("file_that_the_disk_does_not_hold_is_an_error_and_the_old_one_stays") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "old");
  Run run(3);
  run.save(folder.path, 3);
  // A limit on the size of files acts like a full disk, but for the error's number.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{200, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message, checkpoint_message;
  try {
    write_file_atomically(folder / "file", std::string(1000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  try {
    run.set(4);
    run.save(folder.path, 4);
  } catch (const Error& error) {
    checkpoint_message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(message == "file: cannot write " + (folder / "file").string() + ": File too large");
  CHECK_THAT(checkpoint_message, ContainsSubstring("training-4.safetensors: File too large"));
  CHECK(read_file(folder / "file") == "old");
  CHECK(folder.files() == 3);
  CHECK(run.load(folder.path).step == 3);
  CHECK(run.value() == 3);
}
