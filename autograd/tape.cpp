#include "autograd/tape.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace tapeformer {
namespace {

thread_local Tape* current_tape = nullptr;
thread_local RandomScope* current_random = nullptr;

Gradient* gradient_of(const Tensor& x) { return static_cast<Gradient*>(x.gradient_state()); }

Gradient* new_gradient(const Tensor& x, uint64_t tape) {
  auto* gradient = new Gradient;
  gradient->shape = x.shape();
  gradient->dtype = tape == 0 ? wide(x.dtype()) : x.dtype();
  gradient->value_dtype = x.dtype();
  gradient->device = x.device();
  gradient->tape = tape;
  return gradient;
}

Gradient& leaf(const char* operation, const Tensor& x) {
  Gradient* gradient = gradient_of(x);
  check(gradient && gradient->tape == 0, operation,
        ": needs a leaf, a tensor given to requires_gradient()");
  return *gradient;
}

// Buffers of leaves are theirs for good; others may be shared by several outputs and inputs.
bool may_write(const Gradient& gradient) { return gradient.tape == 0 || gradient.value.unique(); }

}  // namespace

Tensor requires_gradient(const Tensor& x) {
  check(is_floating(x.dtype()), "requires_gradient: needs a floating dtype, got ", x.dtype());
  if (const Gradient* gradient = gradient_of(x))
    check(gradient->tape == 0,
          "requires_gradient: x is the output of a recorded operation; use x.detach()");
  else
    x.set_gradient_state(Ref<GradientState>(new_gradient(x, 0)));
  return x;
}

Tensor gradient(const Tensor& x) {
  const Gradient& gradient = leaf("gradient", x);
  return gradient.written ? gradient.value : Tensor{};
}

void zero_gradient(const Tensor& x) { leaf("zero_gradient", x).written = false; }

// ---------------------------------------------------------------- the backward pass of one record

const Tensor& BackwardPass::gradient(size_t i) const { return outputs_[i]->value; }

double BackwardPass::gradient_item() const {
  return outputs_[0]->constant ? *outputs_[0]->constant : gradient().item();
}

bool BackwardPass::needs(size_t i) const { return static_cast<bool>(inputs_[i]); }

size_t BackwardPass::bytes() const {
  size_t sum = 0;
  const auto add = [&](const Gradient& g) { sum += g.shape.numel() * size_of(g.dtype); };
  for (const auto& input : inputs_)
    if (input) add(*input);
  for (const auto& output : outputs_)
    if (output->written) add(*output);
  return sum;
}

Destination BackwardPass::destination_of(Gradient& gradient) {
  const bool accumulate = gradient.written;
  if (!gradient.value.defined()) {
    gradient.value = Tensor::empty(gradient.shape, gradient.dtype, gradient.device);
  } else if (accumulate && !may_write(gradient)) {
    gradient.value = gradient.value.clone();
  }
  gradient.written = true;
  gradient.constant.reset();
  return {gradient.value, accumulate};
}

Destination BackwardPass::destination_in(DType dtype, size_t i) {
  Gradient& gradient = *inputs_[i];
  settle(&gradient);
  if (dtype == gradient.dtype) return destination_of(gradient);
  conversions_.push_back({&gradient, Tensor::empty(gradient.shape, dtype, gradient.device)});
  return {conversions_.back().contribution};
}

Destination BackwardPass::destination(size_t i) {
  return inputs_[i] ? destination_in(inputs_[i]->value_dtype, i) : Destination{};
}

Destination BackwardPass::wide_destination(size_t i) {
  return inputs_[i] ? destination_in(wide(inputs_[i]->value_dtype), i) : Destination{};
}

void BackwardPass::settle(const Gradient* only) {
  for (const auto& [gradient, contribution] : conversions_)
    if (!only || gradient == only) kernels::affine(contribution, 1, 0, destination_of(*gradient));
  std::erase_if(conversions_,
                [&](const Conversion& done) { return !only || done.gradient == only; });
}

void BackwardPass::pass_on(size_t i, const Tensor& contribution) {
  pass_on_scaled(i, contribution, 1);
}

void BackwardPass::pass_on_scaled(size_t i, const Tensor& contribution, double scale) {
  if (!inputs_[i] || !contribution.defined()) return;
  Gradient& gradient = *inputs_[i];
  settle(&gradient);
  check(contribution.numel() == gradient.shape.numel(), "pass_on: a gradient of shape ",
        contribution.shape(), " for an input of shape ", gradient.shape);
  const bool share = gradient.tape != 0 && !gradient.written && scale == 1 &&
                     contribution.dtype() == gradient.dtype;
  if (!share) return kernels::affine(contribution, scale, 0, destination_of(gradient));
  gradient.value =
      contribution.shape() == gradient.shape ? contribution : contribution.view(gradient.shape);
  gradient.written = true;
}

// ---------------------------------------------------------------- the tape

Tape::Tape() : outer_(current_tape) {
  static std::atomic<uint64_t> next_id{1};
  id_ = next_id.fetch_add(1, std::memory_order_relaxed);
  current_tape = this;
}

Tape::~Tape() {
  // Not always the innermost: `tape = std::make_unique<Tape>()` makes the new one first.
  for (Tape** link = &current_tape; *link; link = &(*link)->outer_)
    if (*link == this) {
      *link = outer_;
      return;
    }
}

Tape* Tape::current() { return current_tape; }

bool Tape::needed(const char* operation, std::span<const Tensor> inputs) {
  bool any = false;
  for (const Tensor& input : inputs) {
    const Gradient* gradient = gradient_of(input);
    if (!gradient) continue;
    check(gradient->tape == 0 || gradient->tape == id_, operation,
          ": an input was recorded by another tape, so its gradient would be lost; pass it through "
          "the inputs of recompute(), or detach() it");
    any = true;
  }
  check(!any || !consumed_, operation, ": this tape's backward has run; make a new Tape");
  noticed_ |= any;
  return any && !only_notices_;
}

void Tape::push(const char* operation, std::span<const Tensor> inputs,
                std::span<const Tensor> outputs, BackwardFunction backward) {
  Record& record = records_.emplace_back();
  record.operation = operation;
  record.inputs = inputs.size();
  record.gradients.reserve(inputs.size() + outputs.size());
  for (const Tensor& input : inputs) record.gradients.emplace_back(gradient_of(input));
  for (const Tensor& output : outputs) {
    record.gradients.emplace_back(new_gradient(output, id_));
    output.set_gradient_state(Ref<GradientState>(record.gradients.back().get()));
  }
  record.backward = std::move(backward);
  if (on_record) on_record(operation, inputs, outputs);
}

void Tape::backward(const Tensor& loss, double scale) {
  check(loss.numel() == 1, "backward: needs a loss with one element, got shape ", loss.shape());
  const Tensor here = Tensor::full(loss.shape(), scale, loss.dtype());
  const double rounded = here.item();
  check(std::isfinite(rounded) || !std::isfinite(scale), "backward: a scale of ", scale,
        " is infinite in ", loss.dtype(), "; use cast(loss, DType::f32)");
  const Tensor seed = here.to(loss.device());
  run_backward({&loss, 1}, {&seed, 1}, rounded);
}

void Tape::backward_from(std::span<const Tensor> outputs, std::span<const Tensor> gradients) {
  run_backward(outputs, gradients, {});
}

void Tape::run_backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients,
                        std::optional<double> constant) {
  check(!consumed_, "backward: this tape was consumed by an earlier backward; make a new Tape");
  check(outputs.size() == gradients.size(), "backward: ", outputs.size(), " outputs but ",
        gradients.size(), " gradients");
  std::vector<Ref<Gradient>> seeded;
  for (size_t i = 0; i < outputs.size(); ++i) {
    seeded.emplace_back(gradients[i].defined() ? gradient_of(outputs[i]) : nullptr);
    if (!gradients[i].defined()) continue;
    check(seeded[i] && (seeded[i]->tape == id_ || seeded[i]->tape == 0),
          "backward: no operation on this tape made this tensor from one that needs a gradient");
    check(gradients[i].shape() == outputs[i].shape() && gradients[i].dtype() == outputs[i].dtype(),
          "backward: output is ", outputs[i].shape(), " ", outputs[i].dtype(), ", its gradient ",
          gradients[i].shape(), " ", gradients[i].dtype());
  }
  for (size_t i = 0; i < seeded.size(); ++i) {
    const bool first = seeded[i] && !seeded[i]->written;
    BackwardPass(seeded, {}).pass_on(i, gradients[i]);
    if (first) seeded[i]->constant = constant;
  }
  consumed_ = true;

  const Pause pause;
  while (!records_.empty()) {
    // Taken off first: what the closure saved is freed as soon as it has run.
    Record record = std::move(records_.back());
    records_.pop_back();
    const std::span<Ref<Gradient>> all(record.gradients);
    const auto outputs = all.subspan(record.inputs);
    if (std::ranges::none_of(outputs, [](const auto& gradient) { return gradient->written; }))
      continue;
    BackwardPass pass(all.first(record.inputs), outputs);
    const size_t bytes = on_backward ? pass.bytes() : 0;
    if (on_backward) on_backward(record.operation, bytes, false);
    record.backward(pass);
    pass.settle();
    for (const auto& output : outputs) output->value = {};
    if (on_backward) on_backward(record.operation, bytes, true);
  }
}

Pause::Pause() : suspended_(current_tape) { current_tape = nullptr; }
Pause::~Pause() { current_tape = suspended_; }

bool recording(std::initializer_list<Tensor> inputs) {
  return current_tape && !current_tape->only_notices_ &&
         std::ranges::any_of(inputs, needs_gradient);
}

// ---------------------------------------------------------------- random keys

RandomScope::RandomScope(RandomKey key) : key_(key), outer_(current_random) {
  current_random = this;
}
RandomScope::~RandomScope() { current_random = outer_; }

RandomKey RandomScope::next_key(const char* operation) {
  check(current_random, operation,
        ": draws random numbers, which need a RandomScope: `RandomScope random({seed, "
        "Purpose::dropout, step});` beside the Tape");
  RandomKey key = current_random->key_;
  ++current_random->key_.operation;
  return key;
}

RandomKey RandomScope::position() { return current_random ? current_random->key_ : RandomKey{}; }

}  // namespace tapeformer
