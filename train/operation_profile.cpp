#include "train/operation_profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/format.h"

namespace tapeformer {
namespace {

using Kind = ProfileEvent::Kind;

constexpr const char* kind_names[] = {"forward", "backward", "part", "step"};
const char* name_of(Kind kind) { return kind_names[static_cast<int>(kind)]; }

int64_t bytes_of(std::span<const Tensor> tensors) {
  size_t sum = 0;
  for (const Tensor& tensor : tensors)
    if (tensor.defined()) sum += tensor.bytes();
  return static_cast<int64_t>(sum);
}

// Cells of a row, the first to the left, the others to the right.
std::string line_of(size_t width, const std::string& name, const std::vector<std::string>& cells) {
  std::string line = name + std::string(width - std::min(width, name.size()), ' ');
  for (const std::string& cell : cells)
    line += std::string(12 - std::min<size_t>(11, cell.size()), ' ') + cell;
  return line + "\n";
}

}  // namespace

int64_t OperationProfile::memory_in_use() const {
  return static_cast<int64_t>(memory_stats(device_).live_bytes);
}

double OperationProfile::now() const {
  synchronize(device_);
  const std::chrono::duration<double, std::micro> passed =
      std::chrono::steady_clock::now() - begin_;
  return passed.count();
}

void OperationProfile::add(Kind kind, const std::string& name, double start, int64_t bytes,
                           int64_t kept) {
  events_.push_back({kind, name, start, now() - start, bytes, kept});
}

void OperationProfile::step(const std::function<void()>& f) {
  const double start = now();
  f();
  ++steps_;
  add(Kind::step, "step " + std::to_string(steps_), start);
}

void OperationProfile::part(const std::string& name, const std::function<void()>& f) {
  const double start = now();
  f();
  add(Kind::part, name, start);
  mark_ = now();
  memory_ = memory_in_use();
}

void OperationProfile::watch(Tape& tape) {
  tape.on_record = [this](const char* operation, std::span<const Tensor> inputs,
                          std::span<const Tensor> outputs) {
    const int64_t memory = memory_in_use();
    add(Kind::forward, operation, mark_, bytes_of(inputs) + bytes_of(outputs), memory - memory_);
    memory_ = memory;
    mark_ = now();
  };
  tape.on_backward = [this](const char* operation, size_t bytes, bool done) {
    if (done) add(Kind::backward, operation, mark_, static_cast<int64_t>(bytes));
    mark_ = now();
  };
  memory_ = memory_in_use();
  mark_ = now();
}

double OperationProfile::step_ms() const {
  double sum = 0;
  for (const ProfileEvent& event : events_)
    if (event.kind == Kind::step) sum += event.duration / 1000;
  return steps_ ? sum / static_cast<double>(steps_) : 0;
}

std::vector<OperationCost> OperationProfile::costs_of(bool parts) const {
  std::vector<OperationCost> costs;
  const double share = 1 / static_cast<double>(std::max<int64_t>(1, steps_));
  for (const ProfileEvent& event : events_) {
    if (event.kind == Kind::step || (event.kind == Kind::part) != parts) continue;
    auto cost = std::ranges::find(costs, event.name, &OperationCost::operation);
    if (cost == costs.end()) cost = costs.insert(costs.end(), {.operation = event.name});
    const bool backward = event.kind == Kind::backward;
    (backward ? cost->backward_ms : cost->forward_ms) += share * event.duration / 1000;
    (backward ? cost->backward_bytes : cost->forward_bytes) += share * event.bytes;
    cost->kept_bytes += share * event.kept;
    if (!backward) cost->calls += share;
  }
  std::ranges::stable_sort(costs, std::greater(), &OperationCost::ms);
  return costs;
}

std::vector<OperationCost> OperationProfile::costs() const { return costs_of(false); }

std::string OperationProfile::table() const {
  const std::vector<OperationCost> operations = costs(), parts = costs_of(true);
  const double step = step_ms();
  size_t width = 20;
  double rest = step;
  for (const auto* costs : {&operations, &parts})
    for (const OperationCost& cost : *costs) {
      width = std::max(width, cost.operation.size());
      rest -= cost.ms();
    }
  const auto ms = [](double value) { return fixed(value, 3); };
  const auto megabytes = [](double bytes) { return fixed(bytes / 1e6, 2); };
  const auto percent = [&](double value) {
    return fixed(step > 0 ? 100 * value / step : 0, 1) + " %";
  };
  std::string text = line_of(width, "operation",
                             {"calls", "ms", "of the step", "forward ms", "backward ms",
                              "forward MB", "backward MB", "kept MB"});
  for (const OperationCost& c : operations)
    text += line_of(
        width, c.operation,
        {fixed(c.calls, 0), ms(c.ms()), percent(c.ms()), ms(c.forward_ms), ms(c.backward_ms),
         megabytes(c.forward_bytes), megabytes(c.backward_bytes), megabytes(c.kept_bytes)});
  for (const OperationCost& c : parts)
    text += line_of(width, c.operation, {fixed(c.calls, 0), ms(c.ms()), percent(c.ms())});
  text += line_of(width, "the rest", {"", ms(rest), percent(rest)});
  text += line_of(width, "one step", {"", ms(step), percent(step)});
  return text + "The mean of " + std::to_string(steps_) +
         " steps. MB (1e6 bytes): inputs and outputs, each once; backward, their gradients;\n"
         "kept: growth of the memory in use in forward.\n";
}

std::string OperationProfile::chrome_trace() const {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const ProfileEvent& event : events_) {
    nlohmann::ordered_json entry = {{"name", event.name},
                                    {"cat", name_of(event.kind)},
                                    {"ph", "X"},
                                    {"ts", event.start},
                                    {"dur", event.duration},
                                    {"pid", 1},
                                    {"tid", 1}};
    if (event.kind == Kind::forward) entry["args"] = {{"bytes", event.bytes}, {"kept", event.kept}};
    if (event.kind == Kind::backward) entry["args"] = {{"bytes", event.bytes}};
    events.push_back(std::move(entry));
  }
  return nlohmann::ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}
      .dump();
}

OperationProfile profile_operations(GPT& model, const Corpus& corpus, const TrainOptions& options,
                                    int64_t steps, int64_t warm_up) {
  check(steps > 0 && warm_up >= 0, "profile: needs a step or more, and no negative warm-up, got ",
        steps, " and ", warm_up);
  check(options.accumulate > 0, "profile: accumulate must be positive, got ", options.accumulate);
  Parameters parameters(model);
  AdamW optimizer(parameters, options.adamw);
  const Device device = parameters.values().device();
  OperationProfile warming(device), profile(device);
  for (int64_t step = 0; step < warm_up + steps; ++step) {
    OperationProfile& p = step < warm_up ? warming : profile;
    p.step([&] {
      std::vector<Batch> batches;
      int64_t tokens = 0;
      p.part("batch", [&] {
        for (int64_t i = 0; i < options.accumulate; ++i) {
          batches.push_back(corpus.training_batch(step, i));
          tokens += batches.back().tokens;
        }
      });
      const RandomScope random({options.seed, Purpose::dropout, static_cast<uint32_t>(step), 0});
      parameters.zero_gradients();
      for (const Batch& batch : batches) {
        Tape tape;
        p.watch(tape);
        const Tensor loss =
            model.loss(batch.inputs, batch.targets, {.training = true, .lengths = batch.lengths});
        tape.backward(loss, static_cast<double>(batch.tokens) / static_cast<double>(tokens));
      }
      p.part("clipping and AdamW",
             [&] { optimizer.step(learning_rate(options.schedule, step), options.clip); });
    });
  }
  return profile;
}

}  // namespace tapeformer
