// The profile of a training step: what is timed, how it adds up, and the trace that it writes.
#include "train/operation_profile.h"

#include <nlohmann/json.hpp>
#include <set>

#include "autograd/recompute.h"
#include "tests/catch.h"
#include "tests/lively_model.h"
#include "tests/random_tensor.h"

namespace tapeformer {
namespace {

using Kind = ProfileEvent::Kind;

std::set<std::string> names(const OperationProfile& profile, Kind kind) {
  std::set<std::string> result;
  for (const ProfileEvent& event : profile.events())
    if (event.kind == kind) result.insert(event.name);
  return result;
}

const OperationCost& cost_of(const std::vector<OperationCost>& costs, const std::string& name) {
  const auto found = std::ranges::find(costs, name, &OperationCost::operation);
  REQUIRE(found != costs.end());
  return *found;
}

double end_of(const ProfileEvent& event) { return event.start + event.duration; }

TrainOptions micro_batches(int64_t count) {
  TrainOptions options;
  options.accumulate = count;
  return options;
}

// Two blocks of pre-norm GPT, two micro-batches, two steps after one.
struct Profiled {
  Stories stories;
  GPT model{stories.config("layernorm")};
  OperationProfile profile = profile_operations(model, *stories.corpus, micro_batches(2), 2, 1);
};

// ---------------------------------------------------------------- what is in it

TEST_CASE("every_operation_of_a_step_appears_forward_and_backward") {
  Profiled p;
  std::set<std::string> recorded;
  {
    const Batch batch = p.stories.corpus->training_batch(0);
    Tape tape;
    tape.on_record = [&](const char* operation, std::span<const Tensor>, std::span<const Tensor>) {
      recorded.insert(operation);
    };
    p.model.loss(batch.inputs, batch.targets, {.training = true});
  }
  REQUIRE(recorded.size() > 5);
  CHECK(names(p.profile, Kind::forward) == recorded);
  CHECK(names(p.profile, Kind::backward) == recorded);
  CHECK(names(p.profile, Kind::part) == std::set<std::string>{"batch", "clipping and AdamW"});
}

TEST_CASE("calls_are_counted_per_step_and_warm_up_steps_not_at_all") {
  const Profiled p;
  CHECK(p.profile.steps() == 2);
  CHECK(names(p.profile, Kind::step) == std::set<std::string>{"step 1", "step 2"});
  const auto costs = p.profile.costs();
  CHECK(cost_of(costs, "attention").calls == 2 * 2);   // blocks, micro-batches
  CHECK(cost_of(costs, "linear").calls == 2 * 4 * 2);  // four in each block
  CHECK(cost_of(costs, "linear_cross_entropy").calls == 2);
}

TEST_CASE("an_operation_within_recompute_counts_as_recompute") {
  const Tensor x = requires_gradient(random_tensor({3, 4}, 1));
  OperationProfile profile;
  profile.step([&] {
    Tape tape;
    profile.watch(tape);
    tape.backward(sum(recompute([](const Tensor& h) { return tanh(h); }, x)));
  });
  CHECK(names(profile, Kind::forward) == std::set<std::string>{"recompute", "sum"});
  CHECK(names(profile, Kind::backward) == std::set<std::string>{"recompute", "sum"});
}

// ---------------------------------------------------------------- time

TEST_CASE("events_lie_within_their_step_one_after_the_other") {
  const Profiled p;
  double last = 0, inside = 0;
  int steps = 0;
  for (const ProfileEvent& event : p.profile.events()) {
    CHECK(event.duration >= 0);
    if (event.kind != Kind::step) {
      CHECK(event.start >= last);  // so no moment counts twice
      last = end_of(event);
      inside += event.duration;
      continue;
    }
    ++steps;
    CHECK(end_of(event) >= last);
    CHECK(event.duration >= inside);  // a step comes after its events
    inside = 0;
  }
  CHECK(steps == 2);
}

TEST_CASE("the_operations_times_are_positive_and_add_up_to_less_than_the_step") {
  const Profiled p;
  double sum = 0;
  for (const OperationCost& cost : p.profile.costs()) {
    CAPTURE(cost.operation);
    CHECK(cost.forward_ms > 0);
    CHECK(cost.backward_ms > 0);
    sum += cost.ms();
  }
  CHECK(sum < p.profile.step_ms());
}

TEST_CASE("a_part_between_operations_is_not_the_next_operations_time") {
  const Tensor x = requires_gradient(random_tensor({3}, 1));
  OperationProfile profile;
  profile.step([&] {
    Tape tape;
    profile.watch(tape);
    const Tensor y = x * 2.0;
    profile.part("between", [] {});
    const Tensor z = y * y;
  });
  const auto& events = profile.events();
  REQUIRE(events.size() == 4);
  CHECK(events[1].name == "between");
  CHECK(events[2].start >= end_of(events[1]));
}

TEST_CASE("the_time_of_a_backward_is_that_of_its_own_closure") {
  const Tensor x = requires_gradient(random_tensor({3}, 1));
  OperationProfile profile;
  profile.step([&] {
    Tape tape;
    profile.watch(tape);
    const Tensor y = x.clone();
    record("marked", {x}, {y}, [&](BackwardPass& pass) {
      profile.part("inside", [] {});
      pass.pass_on(0, pass.gradient());
    });
    tape.backward_from({{y}}, {{random_tensor({3}, 2)}});
  });
  const auto& events = profile.events();
  REQUIRE(events.size() == 4);
  CHECK(events[1].name == "inside");
  CHECK(events[2].kind == Kind::backward);
  CHECK(events[2].start >= end_of(events[1]));
}

// ---------------------------------------------------------------- bytes

TEST_CASE("bytes_are_those_of_inputs_and_outputs_and_of_the_gradients_that_flow") {
  const Tensor a = requires_gradient(random_tensor({3, 5}, 1, DType::f32));
  const Tensor b = random_tensor({5, 7}, 2, DType::f32);  // needs no gradient
  const Tensor gamma = requires_gradient(random_tensor({7}, 3, DType::f32));
  OperationProfile profile;
  profile.step([&] {
    Tape tape;
    profile.watch(tape);
    tape.backward(sum(layer_norm(matmul(a, b), gamma, {})));
  });
  const auto costs = profile.costs();
  const OperationCost product = cost_of(costs, "matmul"), norm = cost_of(costs, "layer_norm");
  CHECK(product.forward_bytes == 4 * (3 * 5 + 5 * 7 + 3 * 7));
  CHECK(product.backward_bytes == 4 * (3 * 7 + 3 * 5));  // reads dc, writes da
  CHECK(norm.forward_bytes == 4 * (3 * 7 + 7 + 3 * 7));  // without beta, which was not given
  CHECK(norm.backward_bytes == 4 * (3 * 7 + 3 * 7 + 7));
}

TEST_CASE("what_operations_keep_adds_up_to_the_growth_of_memory_in_forward") {
  const Tensor x = requires_gradient(random_tensor({64, 64}, 1, DType::f32));
  OperationProfile profile;
  int64_t growth = 0;
  profile.step([&] {
    Tape tape;
    profile.watch(tape);
    const size_t before = memory_stats().live_bytes;
    const Tensor product = matmul(x, x), curved = tanh(product), y = mean(curved);
    growth = static_cast<int64_t>(memory_stats().live_bytes - before);
    tape.backward(y);
  });
  int64_t kept = 0;
  for (const ProfileEvent& event : profile.events()) {
    kept += event.kept;
    CHECK((event.kind == Kind::forward || event.kept == 0));
  }
  CHECK(growth >= 2 * 64 * 64 * 4);
  CHECK(kept == growth);
}

// ---------------------------------------------------------------- the table and the trace

TEST_CASE("the_table_has_a_line_for_every_operation_and_part_and_ends_with_the_step") {
  const Profiled p;
  const std::string table = p.profile.table();
  for (const OperationCost& cost : p.profile.costs())
    CHECK_THAT(table, ContainsSubstring("\n" + cost.operation + " "));
  for (const char* row : {"batch", "clipping and AdamW", "the rest", "one step"})
    CHECK_THAT(table, ContainsSubstring("\n" + std::string(row) + " "));
  CHECK_THAT(table, ContainsSubstring("100.0 %") && ContainsSubstring("mean of 2 steps"));
}

TEST_CASE("the_trace_is_json_with_one_complete_event_for_each_of_the_profiles") {
  const Profiled p;
  const auto trace = nlohmann::json::parse(p.profile.chrome_trace());
  const auto& events = trace.at("traceEvents");
  REQUIRE(events.size() == p.profile.events().size());
  for (size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = p.profile.events()[i];
    CHECK(events[i].at("ph") == "X");
    CHECK(events[i].at("name") == event.name);
    CHECK(events[i].at("ts").get<double>() == event.start);
    CHECK(events[i].at("dur").get<double>() == event.duration);
    CHECK((events[i].contains("pid") && events[i].contains("tid")));
    if (event.kind == Kind::forward) CHECK(events[i].at("args").at("bytes") == event.bytes);
  }
  CHECK(events.back().at("cat") == "step");
}

TEST_CASE("a_profile_of_no_steps_and_of_no_micro_batches_is_refused") {
  const Stories stories;
  GPT model(stories.config("layernorm"));
  CHECK_THROWS_WITH(profile_operations(model, *stories.corpus, {}, 0), ContainsSubstring("got 0"));
  CHECK_THROWS_WITH(profile_operations(model, *stories.corpus, micro_batches(0)),
                    ContainsSubstring("accumulate must be positive"));
}

}  // namespace
}  // namespace tapeformer
