// The command line of translate.
#pragma once

#include <CLI/CLI.hpp>

#include "examples/train_gpt_options.h"
#include "train/decoding.h"
#include "train/trainer.h"

namespace tapeformer {

struct TranslateOptions {
  // train
  std::string src, tgt, val_src, val_tgt, out;
  bool resume = false, overwrite = false, lowercase = false, separate = false, untied = false,
       bias = false;
  int64_t merges = 4000, threads = 0, batch_tokens = 2048, longest = 100, bleu_sentences = 0;
  int64_t warmup = 1000, steps = 100'000;
  double smoothing = 0.1, lr = 4e-3, min_lr = 0;
  std::string schedule = "invsqrt", tokenizer;
  TransformerConfig model;
  TrainOptions train;
  // evaluate and run
  std::string checkpoint, ref, attention;
  DecodingOptions decoding;
  bool sample = false;
  SamplingOptions sampling{.temperature = 1};
  uint64_t seed = 1;

  TranslateOptions() {
    model = {.context = 128,
             .layers = 4,
             .heads = 4,
             .channels = 128,
             .hidden = 256,
             .norm = "layernorm",
             .placement = "pre",
             .position = "sinusoidal",
             .activation = "relu",
             .initialization = "xavier",
             .dropout = 0.3,
             .encoder_layers = 4};
    train.adamw = {.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-9, .weight_decay = 0};
    train.eval_every = 500;
    train.average = 5;
    train.clip = 1;
  }
};

inline void declare_translate_run(const OptionGroup& run, TranslateOptions& o) {
  run.add("--src", o.src, "Source sentences, one a line; without it, an embedded language pair")
      ->configurable(false);
  run.add("--tgt", o.tgt, "Their translations, line by line")->configurable(false);
  run.add("--val-src", o.val_src, "Sources to validate on")->configurable(false);
  run.add("--val-tgt", o.val_tgt, "Their translations")->configurable(false);
  run.add("--out", o.out, "Folder for checkpoints, metrics and plots")
      ->required()
      ->configurable(false);
  run.flag("--resume", o.resume, "Go on with the run in --out, with its options and the same texts")
      ->configurable(false);
  run.flag("--overwrite", o.overwrite, "Replace the run in --out")->configurable(false);
  run.add("--threads", o.threads, "CPU threads; 0: all that this process may use")
      ->configurable(false);
  run.add("--seconds", o.train.seconds, "End in time for all to be done by then; 0: no limit")
      ->configurable(false);
  run.add("--seed", o.train.seed, "Seed of weights, batches and dropout");
}

inline void declare_translate_text(const OptionGroup& text, TranslateOptions& o) {
  text.add("--merges", o.merges, "Merges of the byte-pair encoding learnt from the texts");
  text.add("--tokenizer", o.tokenizer, "A tokenizer's file instead, for both sides");
  text.flag("--separate", o.separate, "A vocabulary and embeddings for each side");
  text.flag("--lowercase", o.lowercase, "Everything in lower case");
  text.add("--longest", o.longest, "Drop pairs with more tokens than this on a side");
}

inline void declare_translate_model(const OptionGroup& model, TranslateOptions& o) {
  model.add("--layers", o.model.layers, "Decoder blocks");
  model.add("--encoder-layers", o.model.encoder_layers, "Encoder blocks; 0: as many");
  model.add("--heads", o.model.heads, "Attention heads; they divide the channels");
  model.add("--channels", o.model.channels, "Channels of the residual stream");
  model.add("--hidden", o.model.hidden, "Width of the feed-forward networks; 0: 4 times channels");
  model.add("--norm", o.model.norm, listed(norm_names()));
  model.add("--encoder-norm", o.model.encoder_norm, "The encoder's; empty: --norm");
  model.add("--decoder-norm", o.model.decoder_norm, "The decoder's; empty: --norm");
  model.add("--placement", o.model.placement, listed(placement_names()));
  model.add("--initialization", o.model.initialization, listed(initialization_names()));
  model.add("--position", o.model.position, listed(position_names()));
  model.add("--activation", o.model.activation, listed(activation_names()));
  model.add("--dropout", o.model.dropout, "Of the embeddings and every sub-layer's output");
  model.flag("--untied", o.untied, "An output projection of its own");
}

inline void declare_translate_training(const OptionGroup& training, TranslateOptions& o) {
  training.add("--batch-tokens", o.batch_tokens,
               "Tokens of a batch, padding counted, on each side");
  training.add("--accumulate", o.train.accumulate, "Batches per update");
  training.add("--steps", o.steps, "Updates at most");
  training.add("--lr", o.lr, "Peak learning rate");
  training.add("--min-lr", o.min_lr, "Learning rate at the end, where the schedule has one");
  training.add("--warmup", o.warmup, "Steps of linear rise to the peak");
  training.add("--schedule", o.schedule, listed(schedule_names()));
  training.add("--beta2", o.train.adamw.beta2, "AdamW: decay of the mean of squared gradients");
  training.add("--weight-decay", o.train.adamw.weight_decay, "AdamW: of tensors of two dimensions");
  training.add("--clip", o.train.clip, "Largest global gradient norm; 0: no clipping");
  training.add("--smoothing", o.smoothing, "Share of each label spread over the vocabulary");
  training.add("--eval-every", o.train.eval_every, "Steps between evaluations");
  training.add("--bleu-sentences", o.bleu_sentences,
               "Validation sentences translated at each evaluation but the last; 0: all");
  training.add("--patience", o.train.patience,
               "Stop after so many evaluations without gain; 0: not");
  training.add("--average", o.train.average,
               "At the end, try the mean weights of so many last evaluations; 0: not");
}

inline void declare_translate_train(CLI::App& app, TranslateOptions& o) {
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  declare_translate_run({app, "Run"}, o);
  declare_translate_text({app, "Text"}, o);
  declare_translate_model({app, "Model"}, o);
  declare_translate_training({app, "Training"}, o);
}

inline void declare_decoding(CLI::App& app, TranslateOptions& o) {
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  const OptionGroup options{app, "Decoding"};
  options.add("--checkpoint", o.checkpoint, "A run's folder or a model file")->required();
  options.add("--beam", o.decoding.beam, "Hypotheses per sentence; 1: greedy");
  options.add("--length-penalty", o.decoding.length_penalty,
              "Exponent of ((5 + length) / 6), which divides the log probability");
  options.add("--threads", o.threads, "CPU threads; 0: all that this process may use");
}

}  // namespace tapeformer
