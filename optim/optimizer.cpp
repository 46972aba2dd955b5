#include "optim/optimizer.h"

#include <cmath>

#include "core/kernels.h"

namespace tapeformer {
namespace {

Tensor zeros_beside(const Parameters& parameters) {
  const Tensor& values = parameters.values();
  return Tensor::zeros(values.shape(), values.dtype(), values.device());
}

// One view of a flat state buffer per parameter.
void visit_views(const std::string& prefix, const Parameters& parameters, const Tensor& flat,
                 const std::function<void(const std::string&, const Tensor&)>& f) {
  for (const auto& [name, tensor, offset] : parameters.entries())
    f(prefix + name, flat.rows(offset, offset + tensor.numel()).view(tensor.shape()));
}

Tensor part_of(const Tensor& flat, int64_t begin, int64_t end) {
  return flat.defined() ? flat.rows(begin, end) : Tensor{};
}

void check_fraction(const char* name, double value) {
  check(value >= 0 && value < 1, "optimizer: ", name, " must lie in [0, 1), got ", value);
}

}  // namespace

Optimizer::Optimizer(Parameters& parameters)
    : parameters_(parameters),
      sum_of_squares_(parameters.values().empty_like(Shape{1})),
      norm_(sum_of_squares_.empty_like()),
      factor_(Tensor::full({1}, 1, norm_.dtype(), norm_.device())) {}

double Optimizer::step(double lr, double max_norm, double gradient_scale) {
  const int64_t before = steps_;
  set_steps(before);  // whoever waits for a step has seen the numbers of the one before
  start_step(lr, max_norm, gradient_scale);
  const double norm = norm_.item();
  if (!std::isfinite(norm)) set_steps(before);
  return norm;
}

void Optimizer::set_steps(int64_t steps) {
  steps_ = steps;
  factor_.fill(1);
}

void Optimizer::start_step(double lr, double max_norm, double gradient_scale,
                           const Tensor& losses) {
  check(std::isfinite(lr) && lr >= 0, "optimizer: the learning rate must be at least 0, got ", lr);
  check(max_norm >= 0, "optimizer: max_norm must be at least 0, which is no clipping, got ",
        max_norm);
  check(gradient_scale > 0, "optimizer: gradient_scale must be positive, got ", gradient_scale);
  kernels::sum_of_squares(parameters_.gradients(), sum_of_squares_);
  kernels::clip_factor(sum_of_squares_, losses, max_norm, gradient_scale, norm_, factor_);
  ++steps_;
  if (factor_.device() == Device::cpu && std::isnan(factor_.item())) return;
  const int64_t decaying = parameters_.decaying(), size = parameters_.size();
  if (decaying > 0) update(0, decaying, factor_, lr, true);
  if (decaying < size) update(decaying, size, factor_, lr, false);
  if (!rounds()) parameters_.round_weights();
}

AdamW::AdamW(Parameters& parameters, const AdamWOptions& options)
    : Optimizer(parameters),
      options_(options),
      m_(zeros_beside(parameters)),
      v_(zeros_beside(parameters)) {
  check_fraction("beta1", options.beta1);
  check_fraction("beta2", options.beta2);
  check(options.epsilon > 0, "optimizer: epsilon must be positive, got ", options.epsilon);
  check(options.weight_decay >= 0 && std::isfinite(options.weight_decay),
        "optimizer: weight_decay must be at least 0 and finite, got ", options.weight_decay);
}

void AdamW::update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) {
  const auto t = static_cast<double>(steps());
  const kernels::AdamWStep step{lr,
                                options_.beta1,
                                options_.beta2,
                                options_.epsilon,
                                decays ? options_.weight_decay : 0,
                                1 - std::pow(options_.beta1, t),
                                1 - std::pow(options_.beta2, t)};
  kernels::adamw_step(parameters_.values().rows(begin, end),
                      parameters_.gradients().rows(begin, end), factor, m_.rows(begin, end),
                      v_.rows(begin, end), step, part_of(parameters_.rounded(), begin, end));
}

void AdamW::visit_state(const std::function<void(const std::string&, const Tensor&)>& f) {
  visit_views("m.", parameters_, m_, f);
  visit_views("v.", parameters_, v_, f);
}

SGD::SGD(Parameters& parameters, const SGDOptions& options)
    : Optimizer(parameters),
      options_(options),
      velocity_(options.momentum > 0 ? zeros_beside(parameters) : Tensor{}) {
  check_fraction("momentum", options.momentum);
  check(options.weight_decay >= 0 && std::isfinite(options.weight_decay),
        "optimizer: weight_decay must be at least 0 and finite, got ", options.weight_decay);
}

void SGD::update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) {
  kernels::sgd_step(parameters_.values().rows(begin, end), parameters_.gradients().rows(begin, end),
                    factor, part_of(velocity_, begin, end), lr, options_.momentum,
                    decays ? options_.weight_decay : 0, part_of(parameters_.rounded(), begin, end));
}

void SGD::visit_state(const std::function<void(const std::string&, const Tensor&)>& f) {
  if (velocity_.defined()) visit_views("velocity.", parameters_, velocity_, f);
}

}  // namespace tapeformer
