// The tape: operations write down, in the order in which they ran, how to undo themselves; backward
// reads the record from its end. Creation order is a topological order, so there is no sort and no
// recursion.
//
//   Tape tape;                              // records while in scope; without a Tape nothing is
//   Tensor loss = model.loss(tokens, targets);
//   tape.backward(loss);                    // pops records from the end, freeing what they saved
//   optimizer.step();
//
// Limits: one backward per tape, no second derivatives. Tensors that a tape has seen must not be
// modified before its backward.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "core/kernels.h"
#include "core/tensor.h"

namespace tapeformer {

/// The gradient side of a tensor that needs one: a leaf (parameter), or the output of a recorded
/// operation.
struct Gradient : GradientState {
  Shape shape;
  DType dtype = DType::f32;        // of the gradient: f32 for a 16-bit leaf
  DType value_dtype = DType::f32;  // of the tensor
  Device device = Device::cpu;
  uint64_t tape = 0;     // id of the tape that recorded it; 0 for a leaf
  Tensor value;          // undefined until the first contribution, unless memory was assigned
  bool written = false;  // value holds contributions
  std::optional<double> constant;  // what value is, where backward began with this number
};

/// Makes x a leaf: backward will leave d loss / d x in gradient(x). Returns x.
/// Throws for integer tensors and for outputs of recorded operations.
Tensor requires_gradient(const Tensor& x);
/// True when x is a leaf or the output of a recorded operation.
inline bool needs_gradient(const Tensor& x) { return x.gradient_state() != nullptr; }
/// The gradient of a leaf, f32 for a 16-bit one; undefined while no backward has written it. It is
/// the buffer itself: the next backward changes it. Throws unless x is a leaf.
Tensor gradient(const Tensor& x);
/// Marks a leaf's gradient unwritten: the next contribution overwrites it.
void zero_gradient(const Tensor& x);

/// What a backward closure sees of its operation.
class BackwardPass {
 public:
  /// The gradient of output i; undefined when nothing flowed back to it (treat it as zero).
  const Tensor& gradient(size_t i = 0) const;
  /// The gradient of output 0, which is one number. Of the loss that backward began with it is
  /// known here; of anything else this waits for the device.
  double gradient_item() const;
  bool needs(size_t i) const;
  /// Number of elements of input i, which needs a gradient.
  int64_t numel(size_t i) const { return inputs_[i]->shape.numel(); }
  /// Where to put the gradient of input i: write to it or add to it, as it says; empty when that
  /// input needs none. Ask once per contribution, and contribute before asking for the next: two
  /// inputs may be one tensor. It has the input's dtype.
  Destination destination(size_t i);
  /// The same in f32 where the input is of a 16-bit dtype: for kernels that sum over much.
  Destination wide_destination(size_t i);
  /// Contributes `contribution`, which has as many elements as input i, without copying where it
  /// can.
  void pass_on(size_t i, const Tensor& contribution);
  /// Contributes scale * contribution.
  void pass_on_scaled(size_t i, const Tensor& contribution, double scale);

 private:
  friend class Tape;
  /// Of the gradients that it reads (those that came) and writes (those that are needed).
  size_t bytes() const;
  BackwardPass(std::span<Ref<Gradient>> inputs, std::span<Ref<Gradient>> outputs)
      : inputs_(inputs), outputs_(outputs) {}
  Destination destination_in(DType dtype, size_t i);
  /// Where to put a contribution in the gradient's own dtype.
  static Destination destination_of(Gradient& gradient);
  /// Adds what was written in another dtype than the gradient's: for `only`, or for all inputs.
  void settle(const Gradient* only = nullptr);

  struct Conversion {
    Gradient* gradient;
    Tensor contribution;
  };
  std::span<Ref<Gradient>> inputs_, outputs_;
  std::vector<Conversion> conversions_;
};

using BackwardFunction = std::function<void(BackwardPass&)>;

class Tape {
 public:
  /// Starts recording on this thread. Tapes nest; the innermost records.
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Computes the gradients of `scale * loss` for every leaf that it depends on, adding to
  /// gradients already written, and consumes the tape. loss has one element.
  /// Throws when this tape did not record loss, or was consumed.
  void backward(const Tensor& loss, double scale = 1);
  /// The same from given gradients of several outputs, each of its output's shape; undefined ones
  /// count as zero.
  void backward_from(std::span<const Tensor> outputs, std::span<const Tensor> gradients);

  size_t size() const { return records_.size(); }

  /// Called after every operation of this tape: for finding the first value that is not finite, and
  /// for timing. Undefined inputs are those that were not given.
  std::function<void(const char* operation, std::span<const Tensor> inputs,
                     std::span<const Tensor> outputs)>
      on_record;
  /// Called before and after (`done`) each operation's part of backward. bytes: of the gradients
  /// that it reads and writes.
  std::function<void(const char* operation, size_t bytes, bool done)> on_backward;

  /// The tape that records now on this thread; null when there is none or it is paused.
  static Tape* current();

 private:
  template <class F>
  friend void record(const char*, std::initializer_list<Tensor>, std::initializer_list<Tensor>,
                     F&&);
  template <class F>
  friend void record(const char*, std::span<const Tensor>, std::span<const Tensor>, F&&);
  friend class Pause;
  friend bool recording(std::initializer_list<Tensor> inputs);
  friend std::vector<Tensor> recompute(
      const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>&,
      const std::vector<Tensor>&);

  struct Record {
    const char* operation;
    std::vector<Ref<Gradient>> gradients;  // of the inputs (null: not needed), then of the outputs
    size_t inputs;
    BackwardFunction backward;
  };
  /// Whether an input needs a gradient. Throws where one would be lost.
  bool needed(const char* operation, std::span<const Tensor> inputs);
  void push(const char* operation, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            BackwardFunction backward);
  /// `constant`: what the one gradient is, as far as the host knows.
  void run_backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients,
                    std::optional<double> constant);

  std::vector<Record> records_;
  uint64_t id_;
  bool consumed_ = false;
  bool only_notices_ = false;  // recompute's first pass: record nothing, but notice whether
  bool noticed_ = false;       // anything would have been recorded
  Tape* outer_;
};

/// Suspends recording on this thread while in scope.
class Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  Tape* suspended_;
};

/// Records an operation on the current tape, if there is one and an input needs a gradient. The
/// closure's captures are what is saved for backward. Throws when an input needs a gradient but was
/// recorded by another tape: its gradient would be lost.
template <class F>
void record(const char* operation, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            F&& backward) {
  if (Tape* tape = Tape::current(); tape && tape->needed(operation, inputs))
    tape->push(operation, inputs, outputs, std::forward<F>(backward));
}
template <class F>
void record(const char* operation, std::initializer_list<Tensor> inputs,
            std::initializer_list<Tensor> outputs, F&& backward) {
  record(operation, std::span<const Tensor>(inputs.begin(), inputs.size()),
         std::span<const Tensor>(outputs.begin(), outputs.size()), std::forward<F>(backward));
}

/// True when an operation on these inputs would be recorded now: for operations that can spare
/// themselves saving something.
bool recording(std::initializer_list<Tensor> inputs);

/// Numbers the random operations (dropout) of one step, on this thread, while in scope: each takes
/// the next key. recompute() repeats the numbers.
class RandomScope {
 public:
  explicit RandomScope(RandomKey key);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// The innermost scope's next key. Throws when there is no scope.
  static RandomKey next_key(const char* operation);
  /// The innermost scope's key as it stands; a default key when there is none.
  static RandomKey position();

 private:
  RandomKey key_;
  RandomScope* outer_;
};

}  // namespace tapeformer
