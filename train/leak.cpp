#include "train/leak.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "train/host_values.h"

namespace tapeformer {
namespace {

Context test_context(bool training) { return {.batch_statistics = training}; }

double euclidean_norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// `tokens` with others at the places [begin, end).
Tensor with_others(const Tensor& tokens, int64_t begin, int64_t end, int64_t vocabulary) {
  const Tensor result = tokens.clone();
  int32_t* id = result.data<int32_t>();
  for (int64_t i = begin; i < end; ++i) id[i] = static_cast<int32_t>((id[i] + 1) % vocabulary);
  return result;
}

// Of the rows [begin, end) of two logits [B,T,V].
LogitChange change_of(const Tensor& before, const Tensor& after, int64_t begin, int64_t end) {
  const int64_t V = before.dim(2);
  const std::vector<double> a = host_values(before), b = host_values(after);
  LogitChange change;
  for (int64_t i = begin * V; i < end * V; ++i) {
    const double difference = std::abs(b[i] - a[i]);
    change.mean += difference / static_cast<double>((end - begin) * V);
    if (std::isnan(difference) || difference > change.largest) change.largest = difference;
  }
  return change;
}

// The gradient of one output of sample 0, by the embedded token that it reaches: [B T][C].
std::vector<double> gradient_by_token(GPT& model, const Tensor& tokens, int64_t time,
                                      bool training) {
  TransformerConfig config = model.config();
  config.vocabulary = tokens.numel();  // position i of the batch holds token i
  config.tied = false;
  GPT probe(config);
  const std::vector<NamedTensor> given = named_tensors(model), own = named_tensors(probe);
  const auto table = [](const std::vector<NamedTensor>& all) {
    return std::ranges::find(all, "token_embedding.weight", &NamedTensor::name)->tensor;
  };
  convert(probe, table(given).dtype(), tokens.device());
  copy_tensors(model, probe);
  std::vector<int32_t> ids(tokens.numel());
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor embedded = table(own);  // [B T, C]
  embedded.copy_from(embedding(table(given).detach(), tokens.view({tokens.numel()})));

  Tape tape;
  const Tensor output = probe.hidden(Tensor::from(ids, tokens.shape()), test_context(training));
  const Tensor seed = Tensor::zeros(output.shape(), output.dtype(), output.device());
  const Tensor one = seed.view({tokens.numel(), config.channels}).rows(time, time + 1);
  kernels::fill_normal(one, 0, 1, RandomKey{.purpose = Purpose::evaluation});
  tape.backward_from({&output, 1}, {&seed, 1});
  const Tensor written = gradient(embedded);
  return written.defined() ? host_values(written)
                           : std::vector<double>(tokens.numel() * config.channels);
}

}  // namespace

LeakReport leak_test(GPT& model, const Tensor& tokens, bool training) {
  check(tokens.rank() == 2 && tokens.dtype() == DType::i32 && tokens.dim(0) >= 2 &&
            tokens.dim(1) >= 2,
        "leak_test: needs i32 tokens of two samples and two time steps or more, got ",
        tokens.dtype(), " ", tokens.shape());
  const int64_t V = model.config().vocabulary, C = model.config().channels;
  check(V >= 2, "leak_test: a vocabulary of one token has none to change it to");
  const Pause pause;
  const int64_t T = tokens.dim(1), rows = tokens.numel(), time = (T - 1) / 2;
  const auto logits = [&](const Tensor& ids) { return model.logits(ids, test_context(training)); };
  const Tensor before = logits(tokens), later = logits(with_others(tokens, T - 1, T, V)),
               sample = logits(with_others(tokens, 0, T, V));
  const std::vector<double> gradients = gradient_by_token(model, tokens, time, training);
  const auto reaching = [&](int64_t begin, int64_t end) {
    return euclidean_norm(std::span(gradients).subspan(begin * C, (end - begin) * C));
  };
  return {.training = training,
          .later_token = change_of(before, later, 0, T - 1),
          .own_tokens = change_of(before, sample, 0, T),
          .other_sample = change_of(before, sample, T, rows),
          .later_gradient = reaching(time + 1, T),
          .own_gradient = reaching(0, time + 1),
          .other_gradient = reaching(T, rows)};
}

std::string leak_table(std::span<const LeakReport> reports) {
  char line[256];
  std::snprintf(line, sizeof line, "%-11s %-38s %12s %12s %12s  %s\n", "mode", "seen through",
                "largest", "mean", "gradient", "verdict");
  std::string table = line;
  for (const LeakReport& report : reports) {
    const auto add = [&](const char* what, const LogitChange& change, double gradient,
                         const char* verdict) {
      std::snprintf(line, sizeof line, "%-11s %-38s %12.4g %12.4g %12.4g%s\n",
                    report.training ? "training" : "evaluation", what, change.largest, change.mean,
                    gradient, verdict);
      table += line;
    };
    const auto verdict = [](bool leaks, const char* leak) { return leaks ? leak : "  no leak"; };
    add("a token's own sample, up to it", report.own_tokens, report.own_gradient, "");
    add("later tokens of its sample", report.later_token, report.later_gradient,
        verdict(report.leaks_time(), "  LEAKS later tokens"));
    add("other samples of the batch", report.other_sample, report.other_gradient,
        verdict(report.leaks_samples(), "  LEAKS other samples"));
  }
  return table +
         "largest, mean: how far the logits move that must not see the change; gradient: what of "
         "an output's gradient reaches the embedded tokens\n";
}

void randomise(Module& module, uint64_t seed) {
  RandomKey key{seed, Purpose::initialization, 0, 0};
  for (const auto& [name, tensor, role] : named_parameters(module)) {
    ++key.operation;
    const Tensor noise = tensor.empty_like();
    if (tensor.rank() >= 2) {
      kernels::fill_normal(noise, 0, 1 / std::sqrt(static_cast<double>(tensor.dim(-1))), key);
      tensor.copy_from(noise);
    } else {
      kernels::fill_normal(noise, 0, 0.3, key);
      tensor.copy_from(tensor.detach() + noise);
    }
  }
}

namespace {

// The first t positions of a batch, with targets for the last of them alone.
Batch prefix_of(const Batch& batch, int64_t t) {
  const int64_t B = batch.inputs.dim(0), T = batch.inputs.dim(1);
  std::vector<int32_t> inputs, targets(B * t, -1);
  Batch prefix;
  for (int64_t b = 0; b < B; ++b) {
    const int32_t* row = batch.inputs.data<int32_t>() + b * T;
    inputs.insert(inputs.end(), row, row + t);
    const int32_t target = batch.targets.data<int32_t>()[b * T + t - 1];
    targets[b * t + t - 1] = target;
    prefix.tokens += target != -1;
  }
  prefix.inputs = Tensor::from(inputs, {B, t});
  prefix.targets = Tensor::from(targets, {B, t});
  prefix.lengths = batch.lengths;  // positions from there on are padding, if there are any
  return prefix;
}

}  // namespace

PrefixLoss prefix_evaluation(GPT& model, const Corpus& corpus, int64_t batches) {
  const Pause pause;
  const int64_t count = corpus.validation_batches(batches);
  PrefixLoss sum;
  double tokens = 0;
  const auto loss_of = [&](const Batch& batch) {
    return batch.tokens *
           model.loss(batch.inputs, batch.targets, {.lengths = batch.lengths}).item();
  };
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = corpus.validation_batch(i, count);
    sum.teacher_forced += loss_of(batch);
    tokens += batch.tokens;
    for (int64_t t = 1; t <= batch.inputs.dim(1); ++t)
      if (const Batch prefix = prefix_of(batch, t); prefix.tokens > 0)
        sum.prefix += loss_of(prefix);
  }
  return {sum.teacher_forced / tokens, sum.prefix / tokens};
}

}  // namespace tapeformer
