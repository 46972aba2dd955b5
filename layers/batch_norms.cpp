#include "layers/batch_norms.h"

#include "autograd/remember.h"

namespace tapeformer {

RunningNorm::RunningNorm(int64_t channels, bool centred)
    : weight(make_parameter({channels}, 1)),
      bias(make_parameter({channels})),
      running_mean(centred ? Tensor::zeros({channels}) : Tensor{}),
      running_variance(Tensor::full({channels}, 1)) {}

void RunningNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight);
  visitor.parameter("bias", bias);
  visitor.buffer("running_mean", running_mean);
  visitor.buffer("running_variance", running_variance);
}

void RunningNorm::update(const Moments& moments, double share) {
  const auto blend = [share](const Tensor& running, const Tensor& moment) {
    if (!running.defined()) return;
    kernels::affine(running, 1 - share, 0.0, Destination{running});
    kernels::affine(moment, share, 0.0, Destination{running, true});
  };
  blend(running_mean, moments.mean);
  blend(running_variance, moments.variance);
}

Moments RunningNorm::running() const {
  return {running_mean.defined() ? running_mean.clone() : Tensor{}, running_variance.clone(), 0};
}

BatchNorm::BatchNorm(int64_t channels, bool masked) : RunningNorm(channels, true), masked(masked) {}

Tensor BatchNorm::forward(const Tensor& x, const NormContext& context) {
  const Tensor lengths = masked ? context.lengths : Tensor{};
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        if (!context.training)
          return batch_norm(x, lengths, running(), true, weight, bias, epsilon);
        batch = batch_moments(x, lengths);
        check(batch.rows > 1,
              "batch norm: one token has no variance, so its output would be the bias whatever it "
              "is; train on batches with more tokens, or choose a norm of single tokens, such as "
              "layernorm");
        const Tensor y = batch_norm(x, lengths, batch, false, weight, bias, epsilon);
        if (context.update_statistics) update(batch, momentum);
        return y;
      },
      x, weight, bias);
}

void BatchNorm::update(const Moments& moments, double share) {
  const double n = static_cast<double>(moments.rows);
  const Tensor unbiased = n > 1 ? moments.variance * (n / (n - 1)) : moments.variance;
  RunningNorm::update({moments.mean, unbiased, moments.rows}, share);
}

PowerNorm::PowerNorm(int64_t channels, bool running_in_training)
    : RunningNorm(channels, false),
      e(running_in_training ? Tensor::zeros({channels}) : Tensor{}),
      step(Tensor::zeros({1}, DType::i32)) {}

void PowerNorm::visit(Visitor& visitor) {
  RunningNorm::visit(visitor);
  visitor.buffer("e", e);
  visitor.buffer("step", step);
}

namespace {

// x [B,T,C] with zeros in place of padding.
Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return x;
  const Tensor padding = padding_mask(lengths, x.dim(1), x.device());
  return masked_fill(x, reshape(padding, {x.dim(0), x.dim(1), 1}), 0);
}

// x [B,T,C] -> [C]
Tensor sum_of_tokens(const Tensor& x) { return sum(reshape(x, {-1, x.dim(-1)}), 0); }

Tensor inverse_root(const Tensor& x, double epsilon) { return pow(x + epsilon, -0.5); }

// y = weight z + bias, z = x / sqrt(phi + epsilon). Backward, with g = weight dy (Shen et al. 2020,
// algorithm 2): the true gradient through the batch's statistic would be
//   dx = (g - z mean(g z)) / sqrt(v + epsilon);
// for mean(g z), of this batch, stands (1 - alpha) e, which gathers those of all batches:
//   a = g - (1 - alpha) e z,  e = e + mean(a z),  dx = a / sqrt(v + epsilon),
// means over real tokens, and a = g for padding, which has no share in v.
Tensor power_norm(const Tensor& x, const Tensor& lengths, const Tensor& phi, const Moments& batch,
                  const Tensor& e, double alpha, const Tensor& weight, const Tensor& bias,
                  double epsilon) {
  Tensor y;
  {
    const Pause pause;
    y = weight * (x * inverse_root(phi, epsilon)) + bias;
  }
  record("power_norm", {x, weight, bias}, {y}, [=](BackwardPass& pass) {  // the tape is paused here
    const Tensor dy = pass.gradient(), z = x * inverse_root(phi, epsilon);
    const Tensor g = weight * dy;
    const Tensor a = g - (1 - alpha) * e * without_padding(z, lengths);
    const Tensor correlation = sum_of_tokens(without_padding(a * z, lengths)) / batch.rows;
    kernels::affine(correlation, 1.0, 0.0, Destination{e, true});
    pass.pass_on(0, a * inverse_root(batch.variance, epsilon));
    pass.pass_on(1, sum_of_tokens(dy * z));
    pass.pass_on(2, sum_of_tokens(dy));
  });
  return y;
}

}  // namespace

Tensor PowerNorm::scale_groups(const Tensor& x) const {
  if (groups == 0) return x;
  check(groups > 0 && x.dim(-1) % groups == 0, "power norm: ", groups, " groups do not divide ",
        x.dim(-1), " channels; choose a divisor, or 0 for none");
  const Tensor each = reshape(x, {-1, x.dim(-1) / groups});
  return reshape(rms_norm(each, {}, 1e-5), x.shape());
}

Tensor PowerNorm::forward(const Tensor& x, const NormContext& context) {
  return compute_wide(
      [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        const Tensor scaled = scale_groups(x);
        if (context.training) return training_pass(scaled, weight, bias, context);
        return batch_norm(scaled, context.lengths, running(), true, weight, bias, epsilon);
      },
      x, weight, bias);
}

Tensor PowerNorm::training_pass(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const NormContext& context) {
  batch = batch_moments(x, context.lengths, false);
  // As they were before this pass, and whether it counts, also when recompute() runs it again.
  const Tensor phi = remember([&] { return running_variance.clone(); });
  const double before = remember([&] { return step.clone(); }).item();
  const bool counts =
      remember([&] { return Tensor::full({1}, context.update_statistics); }).item() != 0;
  const bool warming_up = before < static_cast<double>(warm_up);
  const Tensor y = warming_up || !e.defined()
                       ? batch_norm(x, context.lengths, batch, false, weight, bias, epsilon)
                       : power_norm(x, context.lengths, phi, batch, counts ? e : e.clone(), alpha,
                                    weight, bias, epsilon);
  if (!context.update_statistics) return y;
  // The paper's code counts a batch of the warm-up twice: first phi = (t - 1) / t phi + v / t.
  if (warming_up) update(batch, 1 / (before + 1));
  update(batch, 1 - alpha);
  step.fill(before + 1);
  return y;
}

}  // namespace tapeformer
