// What train_gpt does under "Looking inside": it tests for leaks, and reports on the trained model.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "examples/train_gpt_options.h"
#include "layers/float16.h"
#include "train/batch_statistics.h"
#include "train/checkpoint.h"
#include "train/diagnosis.h"
#include "train/evaluation.h"
#include "train/files.h"
#include "train/leak.h"
#include "train/operation_profile.h"

namespace tapeformer {

/// Whether the model holds norms of its configuration's kind; those of --qk-norm are none of them.
inline bool uses_norm(GPT& model) {
  return std::ranges::any_of(named_modules(model), [](const NamedModule& part) {
    return dynamic_cast<const Norm*>(part.module) &&
           part.name.find("attention") == std::string::npos;
  });
}

/// Refuses options that cannot go together, or not with this model.
inline void check_inspection(const CLI::App& app, const TrainGptOptions& o, GPT& model) {
  check(o.inspect.prefix_eval >= 0, "--prefix-eval must not be negative, got ",
        o.inspect.prefix_eval);
  check(o.inspect.recalibrate >= 0, "--recalibrate must not be negative, got ",
        o.inspect.recalibrate);
  const bool profiles = app.count("--profile") > 0;
  check(!profiles || !o.inspect.profile.empty(), "--profile: the name of the file is empty");
  check(o.doctor + o.inspect.leak_test + profiles <= 1,
        "--doctor, --leak-test and --profile each report and exit; name one");
  const bool after_training =
      o.inspect.prefix_eval || o.inspect.recalibrate || o.inspect.float16_norms;
  const bool reports = o.doctor || o.inspect.leak_test || profiles;
  check(!reports || !(after_training || app.count("--inspect-every")),
        o.doctor              ? "--doctor"
        : o.inspect.leak_test ? "--leak-test"
                              : "--profile",
        " exits before training; --inspect-every, --prefix-eval, --recalibrate and "
        "--float16-norms need a run");
  check(o.inspect.recalibrate == 0 || has_running_statistics(model),
        "--recalibrate: a model of norm '", o.model.norm, "' and placement '", o.model.placement,
        "' keeps no running statistics; batchnorm and powernorm do, where the placement has norms");
  check(!o.inspect.float16_norms || !float16_norms_of(o.model.norm).empty(),
        "--float16-norms: there are emulations of layernorm and rmsnorm, not of '", o.model.norm,
        "'");
  if (uses_norm(model)) return;
  check(!app.count("--norm") || o.model.norm == "none", "--norm ", o.model.norm,
        ": the placement '", o.model.placement, "' has no norms; choose another, or leave it out");
  check(!o.inspect.float16_norms, "--float16-norms: the placement '", o.model.placement,
        "' has no norms");
}

/// What --doctor finds.
inline int report_health(GPT& model, const Corpus& corpus) {
  const HealthReport report = health_report(examine(model, corpus));
  std::printf("%s", report.table.c_str());
  return report.healthy ? 0 : 1;
}

/// Times a few training steps, which the model keeps: the table on standard output, the trace in
/// the file.
inline int report_profile(const TrainGptOptions& o, GPT& model, const Corpus& corpus) {
  const OperationProfile profile = profile_operations(model, corpus, o.train);
  write_file_atomically(o.inspect.profile, profile.chrome_trace());
  std::printf("%strace        %s\n", profile.table().c_str(), o.inspect.profile.c_str());
  return 0;
}

/// A batch of two samples or more.
inline Tensor tokens_of_samples(const Corpus& corpus) {
  const Tensor first = corpus.training_batch(0).inputs;
  if (first.dim(0) > 1) return first;
  const Tensor second = corpus.training_batch(1).inputs;
  const int64_t time = std::min(first.numel(), second.numel());
  std::vector<int32_t> ids(first.data<int32_t>(), first.data<int32_t>() + time);
  ids.insert(ids.end(), second.data<int32_t>(), second.data<int32_t>() + time);
  return Tensor::from(ids, {2, time});
}

/// Of the resumed run's model, or of a fresh one with weights at which every path matters.
inline int report_leaks(const TrainGptOptions& o, GPT& model, const Corpus& corpus) {
  if (o.resuming) {
    Parameters parameters(model);  // what a checkpoint holds in 16 bits are the masters
    load_model(o.out, parameters);
    parameters.round_weights();
  } else {
    randomise(model, o.train.seed);
  }
  const Tensor tokens = tokens_of_samples(corpus);
  const LeakReport reports[] = {leak_test(model, tokens, true), leak_test(model, tokens, false)};
  std::printf("%s of norm %s, placement %s\n%s",
              o.resuming ? "The trained model" : "A model with random weights",
              o.model.norm.c_str(), o.model.placement.c_str(), leak_table(reports).c_str());
  return 0;
}

inline void print_float16(GPT& model, const Corpus& corpus, int64_t batches) {
  std::printf("\n%-28s %16s %12s %12s\n", "float16 norms", "validation loss", "overflows",
              "underflows");
  for (const Float16Loss& entry : evaluate_in_float16(model, corpus, batches))
    std::printf("%-28s %16.4f %12lld %12lld\n", entry.norm.c_str(), entry.loss,
                static_cast<long long>(entry.overflows), static_cast<long long>(entry.underflows));
}

/// What was asked for of the trained model.
inline void print_inspection(const TrainGptOptions& o, GPT& model, const Corpus& corpus) {
  if (o.inspect.prefix_eval > 0) {
    const PrefixLoss loss = prefix_evaluation(model, corpus, o.inspect.prefix_eval);
    std::printf(
        "\nprefix evaluation, validation loss: teacher-forced %.4f, prefix by prefix %.4f\n",
        loss.teacher_forced, loss.prefix);
  }
  if (o.inspect.recalibrate > 0) {
    const StatisticsLosses losses =
        compare_statistics(model, corpus, o.inspect.recalibrate, o.train.eval_batches);
    std::printf(
        "\nbatch statistics, validation loss: running %.4f, of the batch %.4f, recalibrated on "
        "%lld training batches %.4f\n",
        losses.running, losses.batch, static_cast<long long>(o.inspect.recalibrate),
        losses.recalibrated);
  }
  if (o.inspect.float16_norms) print_float16(model, corpus, o.train.eval_batches);
}

}  // namespace tapeformer
