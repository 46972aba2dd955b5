#include "train/profile.h"

#include <cmath>

#include "optim/loss_scale.h"
#include "train/batch_statistics.h"

namespace tapeformer {
namespace {

double sum_of_squares(const Tensor& x) {
  const Tensor sum = Tensor::empty({1}, wide(x.dtype()), x.device());
  kernels::sum_of_squares(x, sum);
  return sum.item();
}

// Of x [B,T,C], without positions at or after lengths[b].
double root_mean_square(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return std::sqrt(sum_of_squares(x) / static_cast<double>(x.numel()));
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  const Tensor rows = x.view({B * T, C});
  const std::vector<int32_t> real = lengths.to_vector<int32_t>();
  double sum = 0, count = 0;
  for (int64_t b = 0; b < B; ++b) {
    const Tensor sample = rows.rows(b * T, b * T + real[b]);
    sum += sum_of_squares(sample);
    count += static_cast<double>(sample.numel());
  }
  return std::sqrt(sum / count);
}

// Takes the batch's statistics, and writes down the RMS of the stream.
Context observing(std::vector<double>& rms, const Tensor& lengths) {
  return {.lengths = lengths,
          .batch_statistics = true,
          .observe_stream = [&rms, lengths](int64_t, const Tensor& stream) {
            rms.push_back(root_mean_square(stream.detach(), lengths));
          }};
}

}  // namespace

std::vector<double> stream_rms(GPT& model, const Tensor& tokens, const Tensor& lengths) {
  const Pause pause;
  std::vector<double> result;
  model.hidden(tokens, observing(result, lengths));
  return result;
}

Profile profile(GPT& model, const Batch& batch) {
  Profile result;
  const std::vector<NamedTensor> parameters = named_parameters(model);
  const double scale = gradient_scale(parameters[0].tensor.dtype());
  for (const NamedTensor& entry : parameters) zero_gradient(entry.tensor);
  {
    Tape tape;
    tape.backward(
        model.loss(batch.inputs, batch.targets, observing(result.stream_rms, batch.lengths)),
        scale);
  }
  for (const NamedTensor& entry : parameters) {
    const Tensor written = gradient(entry.tensor);
    result.gradient_norms.push_back(
        {entry.name, written.defined() ? std::sqrt(sum_of_squares(written)) / scale : 0});
    zero_gradient(entry.tensor);
  }
  result.tid = statistics_distance(model);
  return result;
}

}  // namespace tapeformer
