// Where the time of a training step goes: milliseconds and bytes of every operation, forward and
// backward, as a table and as a trace for a timeline viewer.
//
//   OperationProfile profile;
//   profile.step([&] {
//     Tape tape;
//     profile.watch(tape);
//     tape.backward(model.loss(tokens, targets));
//     profile.part("optimizer", [&] { optimizer.step(1e-3); });
//   });
//   profile.table();
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace tapeformer {

/// A stretch of time: one operation's forward or backward, another part of a step, or a whole step.
struct ProfileEvent {
  enum class Kind { forward, backward, part, step } kind;
  std::string name;
  double start = 0, duration = 0;  ///< microseconds; the profile began at 0
  /// forward: of the inputs and outputs, each once; backward: of their gradients. What a kernel
  /// reads beside them (token ids, what was saved for backward) and its scratch do not count.
  int64_t bytes = 0;
  /// forward: by how much the memory in use grew, for outputs and for what backward will need.
  int64_t kept = 0;
};

/// All calls of one operation in a step, on average over the steps.
struct OperationCost {
  std::string operation;
  double calls = 0, forward_ms = 0, backward_ms = 0;
  double forward_bytes = 0, backward_bytes = 0, kept_bytes = 0;
  double ms() const { return forward_ms + backward_ms; }
};

class OperationProfile {
 public:
  /// Of steps on `device`; what it does in its own time is waited for at every mark.
  explicit OperationProfile(Device device = Device::cpu) : device_(device) {}

  /// Runs f, which takes one training step.
  void step(const std::function<void()>& f);
  /// Within a step: runs f and times it under this name, apart from the operations.
  void part(const std::string& name, const std::function<void()>& f);
  /// Within a step: times every operation that `tape` records from now on, and its backward. An
  /// operation's forward lasts from the end of the one before it, so it takes in what the model
  /// does between them. Replaces the tape's hooks, which refer to this profile.
  void watch(Tape& tape);

  const std::vector<ProfileEvent>& events() const { return events_; }
  int64_t steps() const { return steps_; }
  /// Of one step, the mean; by the clock on the wall, as all times here.
  double step_ms() const;
  /// The operations, those that take longest first.
  std::vector<OperationCost> costs() const;
  /// costs(), the parts and what is left of a step, for a person to read.
  std::string table() const;
  /// The events as JSON in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev
  /// show.
  std::string chrome_trace() const;

 private:
  double now() const;
  int64_t memory_in_use() const;
  /// An event from `start` until now.
  void add(ProfileEvent::Kind kind, const std::string& name, double start, int64_t bytes = 0,
           int64_t kept = 0);
  std::vector<OperationCost> costs_of(bool parts) const;

  Device device_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<ProfileEvent> events_;
  int64_t steps_ = 0;
  double mark_ = 0;     // when the operation under way began
  int64_t memory_ = 0;  // bytes in use then
};

/// Takes training steps of `options` (rate, clipping, micro-batches, seed), first `warm_up` that do
/// not count: they fill the allocator's cache.
OperationProfile profile_operations(GPT& model, const Corpus& corpus, const TrainOptions& options,
                                    int64_t steps = 5, int64_t warm_up = 3);

}  // namespace tapeformer
