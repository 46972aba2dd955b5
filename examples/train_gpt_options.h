// The command line of train_gpt: every size and rate is an option, also in a file for --config.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "train/trainer.h"

namespace tapeformer {

struct TrainGptOptions {
  std::string data, out, resume;
  bool resuming = false, overwrite = false, doctor = false;
  int64_t stop_after = 0, threads = 0;

  TransformerConfig model;
  bool untied = false;
  int64_t batch = 12, steps = 2000, warmup = 100;
  bool lines = false;
  std::string tokenizer = "character", dtype = "f32", device = "cpu", schedule = "cosine";
  double lr = 1e-3, min_lr = 1e-4;
  TrainOptions train;

  TrainGptOptions() {
    model.bias = false;
    train.adamw = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
    train.eval_every = 250;
    train.eval_batches = 40;
  }
};

inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Declares every option. Those that are `configurable` make up the run: a checkpoint keeps them,
/// and resuming takes them from there.
inline void declare(CLI::App& app, TrainGptOptions& o) {
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_config("--config", "", "Read options from a file: lines such as layers=6");

  const auto add = [&app](const char* group, const char* name, auto& value,
                          const std::string& text) {
    return app.add_option(name, value, text)->group(group);
  };
  const auto flag = [&app](const char* group, const char* name, bool& value,
                           const std::string& text) {
    return app.add_flag(name, value, text)->group(group);
  };

  add("Run", "--data", o.data, "Text file to train on; without it, generated stories")
      ->configurable(false);
  flag("Run", "--lines", o.lines,
       "Every line of the text is an example of its own (names, sentences)");
  add("Run", "--out", o.out,
      "Folder for checkpoints, metrics and plots; without it, a fresh one in runs/")
      ->configurable(false);
  flag("Run", "--overwrite", o.overwrite, "Replace the run that --out holds")->configurable(false);
  app.add_option("--resume", o.resume, "Go on with the run that this folder (or --out) holds")
      ->expected(0, 1)
      ->group("Run")
      ->configurable(false);
  add("Run", "--stop-after", o.stop_after,
      "Stop when this many steps are done; the schedule still aims at --steps")
      ->configurable(false);
  add("Run", "--threads", o.threads, "CPU threads; 0: all that this process may use")
      ->configurable(false);
  flag("Run", "--doctor", o.doctor, "Take two steps, report every parameter, and exit")
      ->configurable(false);
  add("Run", "--seed", o.train.seed, "Seed of weights, batches, dropout and samples")
      ->check(CLI::NonNegativeNumber);
  add("Run", "--dtype", o.dtype, "f32 or f64");
  add("Run", "--device", o.device, "cpu");

  add("Model", "--layers", o.model.layers, "Transformer blocks");
  add("Model", "--heads", o.model.heads, "Attention heads; they divide the channels");
  add("Model", "--kv-heads", o.model.kv_heads,
      "Key-value heads; they divide the heads; 0: as many");
  add("Model", "--channels", o.model.channels, "Channels of the residual stream");
  add("Model", "--hidden", o.model.hidden,
      "Width of the feed-forward network; 0: 4 times the channels, or as many parameters for "
      "swiglu");
  add("Model", "--context", o.model.context, "Longest sequence, in tokens");
  add("Model", "--norm", o.model.norm, listed(norm_names()));
  add("Model", "--placement", o.model.placement, listed(placement_names()));
  add("Model", "--position", o.model.position, listed(position_names()));
  add("Model", "--activation", o.model.activation, listed(activation_names()));
  add("Model", "--dropout", o.model.dropout, "Of the embeddings and of every sub-layer's output");
  flag("Model", "--qk-norm", o.model.qk_norm, "RMS norm of each head's queries and keys");
  flag("Model", "--bias", o.model.bias, "Biases in the linear maps");
  flag("Model", "--untied", o.untied,
       "An output projection of its own instead of the embedding table");
  add("Model", "--tokenizer", o.tokenizer, "character or byte");

  add("Training", "--batch", o.batch, "Sequences per micro-batch");
  add("Training", "--accumulate", o.train.accumulate, "Micro-batches per update");
  add("Training", "--steps", o.steps, "Updates, and the schedule's horizon");
  add("Training", "--lr", o.lr, "Peak learning rate");
  add("Training", "--min-lr", o.min_lr, "Learning rate at the end");
  add("Training", "--warmup", o.warmup, "Steps of linear rise to the peak");
  add("Training", "--schedule", o.schedule, listed(schedule_names()));
  add("Training", "--beta1", o.train.adamw.beta1, "AdamW: decay of the mean of the gradients");
  add("Training", "--beta2", o.train.adamw.beta2, "AdamW: decay of the mean of their squares");
  add("Training", "--weight-decay", o.train.adamw.weight_decay,
      "AdamW: of tensors with two dimensions");
  add("Training", "--clip", o.train.clip, "Largest global gradient norm; 0: no clipping");
  add("Training", "--eval-every", o.train.eval_every,
      "Steps between evaluations; 0: only at the end");
  add("Training", "--eval-batches", o.train.eval_batches,
      "Batches of each evaluation but the last; 0: the whole validation part");
  add("Training", "--save-every", o.train.save_every,
      "Steps between checkpoints; 0: with every evaluation");
  add("Training", "--patience", o.train.patience,
      "Stop after so many evaluations without gain; 0: never");
}

/// Puts what belongs together in one place.
inline void complete(TrainGptOptions& o) {
  o.model.tied = !o.untied;
  o.train.schedule = {
      .name = o.schedule, .lr = o.lr, .min_lr = o.min_lr, .warmup = o.warmup, .steps = o.steps};
}

}  // namespace tapeformer
