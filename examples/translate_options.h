// The command line of translate: its training, and what evaluating and running share.
#pragma once

#include "examples/options.h"
#include "train/decoding.h"

namespace tapeformer {

struct TranslateTrainOptions {
  std::string program = "translate";  // as it was called
  std::string src, tgt, val_src, val_tgt, out, tokenizer, dtype = "f32", device = "cpu";
  bool resume = false, overwrite = false, lowercase = false, separate = false, untied = false;
  int64_t merges = 4000, threads = 0, batch_tokens = 2048, longest = 100, bleu_sentences = 0;
  double smoothing = 0.1;
  TransformerConfig model;
  TrainOptions train;

  TranslateTrainOptions() {
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
    train.schedule = {.name = "invsqrt", .lr = 4e-3, .min_lr = 0, .warmup = 1000, .steps = 100'000};
    train.adamw = {.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-9, .weight_decay = 0};
    train.eval_every = 500;
    train.average = 5;
    train.clip = 1;
  }
};

struct TranslateOptions {
  std::string checkpoint, device = "cpu";
  int64_t threads = 0;
  DecodingOptions decoding;
  // evaluate
  std::string src, ref;
  bool lowercase = false;
  // run
  bool sample = false;
  SamplingOptions sampling{.temperature = 1};
  uint64_t seed = 1;
  std::string attention;
};

inline void declare_run(const OptionGroup& run, TranslateTrainOptions& o) {
  run.add("--src", o.src, "Source sentences, one a line; without it, an embedded language pair")
      ->configurable(false);
  run.add("--tgt", o.tgt, "Their translations, line by line")->configurable(false);
  run.add("--val-src", o.val_src, "Sources to validate on")->configurable(false);
  run.add("--val-tgt", o.val_tgt, "Their translations")->configurable(false);
  run.add("--out", o.out, "Folder for checkpoints, metrics and plots")
      ->required()
      ->configurable(false);
  run.flag("--resume", o.resume, "Go on with the run that --out holds")->configurable(false);
  run.flag("--overwrite", o.overwrite, "Replace the run that --out holds")->configurable(false);
  declare_threads(run, o.threads);
  run.add("--seconds", o.train.seconds,
          "End in time for the last evaluations to be done by then; 0: no limit")
      ->configurable(false);
  run.add("--seed", o.train.seed, "Seed of weights, batches and dropout");
  declare_arithmetic(run, o.dtype, o.device);
}

inline void declare_text(const OptionGroup& text, TranslateTrainOptions& o) {
  text.add("--merges", o.merges, "Merges of the byte-pair encoding learnt from the texts");
  text.flag("--separate", o.separate, "A vocabulary and embeddings for each side");
  text.add("--tokenizer", o.tokenizer, "A tokenizer's file instead, for both sides");
  text.flag("--lowercase", o.lowercase, "Everything in lower case");
  text.add("--longest", o.longest,
           "Drop pairs with more tokens than this on a side, the end counted");
}

inline void declare_model(const OptionGroup& model, TranslateTrainOptions& o) {
  model.add("--layers", o.model.layers, "Decoder blocks");
  model.add("--encoder-layers", o.model.encoder_layers, "Encoder blocks; 0: as many");
  declare_shape(model, o.model, o.untied);
  model.add("--encoder-norm", o.model.encoder_norm, "The encoder's; empty: --norm");
  model.add("--decoder-norm", o.model.decoder_norm, "The decoder's; empty: --norm");
}

inline void declare_training(const OptionGroup& training, TranslateTrainOptions& o) {
  training.add("--batch-tokens", o.batch_tokens,
               "Tokens of a micro-batch, padding counted, on each side");
  declare_updates(training, o.train);
  training.add("--smoothing", o.smoothing, "Share of each label spread over the vocabulary");
  training.add("--bleu-sentences", o.bleu_sentences,
               "Validation sentences translated at each evaluation, the first ones; 0: all");
  training.add("--average", o.train.average,
               "At the end, try the mean weights of so many last evaluations; 0: not");
}

inline void declare(CLI::App& app, TranslateTrainOptions& o) {
  set_option_defaults(app);
  declare_run({app, "Run"}, o);
  declare_text({app, "Text"}, o);
  declare_model({app, "Model"}, o);
  declare_training({app, "Training"}, o);
}

inline void declare_decoding(const OptionGroup& options, TranslateOptions& o) {
  options.add("--checkpoint", o.checkpoint, "A run's folder or a model file")->required();
  options.add("--beam", o.decoding.beam, "Hypotheses per sentence; 1: greedy");
  options.add("--length-penalty", o.decoding.length_penalty,
              "Exponent of ((5 + length) / 6), which divides the log probability");
  declare_device(options, o.device);
  declare_threads(options, o.threads);
}

inline void declare_scoring(CLI::App& app, TranslateOptions& o) {
  set_option_defaults(app);
  const OptionGroup options{app, "Scores"};
  options.add("--src", o.src, "Source sentences, one a line")->required();
  options.add("--ref", o.ref, "Reference translations, line by line")->required();
  options.flag("--lowercase", o.lowercase, "Score in lower case");
  declare_decoding({app, "Decoding"}, o);
}

inline void declare_translating(CLI::App& app, TranslateOptions& o) {
  set_option_defaults(app);
  declare_decoding({app, "Decoding"}, o);
  const OptionGroup options{app, "Sampling"};
  CLI::Option* const sample =
      options.flag("--sample", o.sample, "Draw each token instead of searching");
  options.add("--temperature", o.sampling.temperature, "Below 1 safer, above 1 bolder")
      ->needs(sample);
  options.add("--top-k", o.sampling.top_k, "Draw from the k most probable tokens; 0: all")
      ->needs(sample);
  options
      .add("--top-p", o.sampling.top_p,
           "Draw from the fewest tokens that have this probability together")
      ->needs(sample);
  options.add("--seed", o.seed, "Equal seeds give equal translations")->needs(sample);
  OptionGroup{app, "Looking inside"}.add(
      "--attention", o.attention,
      "Draw where the decoder looks in the first sentence, as an SVG file");
}

}  // namespace tapeformer
