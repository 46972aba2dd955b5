// The command line of train_gpt: every size and rate is an option, also in a file for --config.
#pragma once

#include <algorithm>

#include "examples/options.h"

namespace tapeformer {

/// What to look at, in this call of the program.
struct InspectionOptions {
  bool leak_test = false, float16_norms = false;
  std::string profile;                       // file
  int64_t prefix_eval = 0, recalibrate = 0;  // batches
};

struct TrainGptOptions {
  std::string program = "train_gpt";  // as it was called
  std::string data, out, resume;
  bool resuming = false, overwrite = false, doctor = false;
  int64_t stop_after = 0, threads = 0;

  InspectionOptions inspect;

  TransformerConfig model;
  bool untied = false;
  int64_t batch = 12;
  bool lines = false;
  std::string tokenizer = "character", dtype = "f32", device = "cpu";
  TrainOptions train;

  TrainGptOptions() {
    model.bias = false;
    train.adamw = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
    train.eval_every = 250;
    train.eval_batches = 40;
  }
};

inline void declare_run(const OptionGroup& options, TrainGptOptions& o) {
  options.add("--data", o.data, "Plain text file to train on; without it, generated stories")
      ->configurable(false);
  options.flag("--lines", o.lines,
               "Every line of the text is an example of its own (names, sentences)");
  options
      .add("--out", o.out,
           "Folder for checkpoints, metrics and plots; without it, a fresh one in runs/")
      ->configurable(false);
  options.flag("--overwrite", o.overwrite, "Replace the run that --out holds")->configurable(false);
  options.app
      .add_option("--resume", o.resume, "Go on with the run that this folder (or --out) holds")
      ->expected(0, 1)
      ->group(options.name)
      ->configurable(false);
  options
      .add("--stop-after", o.stop_after,
           "Stop when this many steps are done; the schedule still aims at --steps")
      ->configurable(false);
  declare_threads(options, o.threads);
  options.flag("--doctor", o.doctor, "Take two steps, report every parameter, and exit")
      ->configurable(false);
  options.add("--seed", o.train.seed, "Seed of weights, batches, dropout and samples");
  declare_arithmetic(options, o.dtype, o.device);
}

inline void declare_model(const OptionGroup& options, TrainGptOptions& o) {
  options.add("--layers", o.model.layers, "Transformer blocks");
  declare_shape(options, o.model, o.untied);
  options.add("--kv-heads", o.model.kv_heads, "Key-value heads; they divide the heads; 0: as many");
  options.add("--context", o.model.context, "Longest sequence, in tokens");
  options.flag("--qk-norm", o.model.qk_norm, "RMS norm of each head's queries and keys");
  options.flag("--bias", o.model.bias, "Biases in the linear maps");
  options.add("--tokenizer", o.tokenizer,
              "character, byte, or a file: what `tokenizer train` wrote, or GPT-2's vocab.json");
}

inline void declare_training(const OptionGroup& options, TrainGptOptions& o) {
  options.add("--batch", o.batch, "Sequences per micro-batch");
  declare_updates(options, o.train);
  options.add("--eval-batches", o.train.eval_batches,
              "Batches of each evaluation but the one at the end; 0: the whole validation part");
}

inline void declare_inspection(const OptionGroup& options, TrainGptOptions& o) {
  options
      .flag("--leak-test", o.inspect.leak_test,
            "Report whether predictions see later tokens or other samples, and exit; of random "
            "weights, or with --resume of the trained ones")
      ->configurable(false);
  options
      .add("--profile", o.inspect.profile,
           "Time a few training steps operation by operation and exit: a table, and in this file a "
           "trace for chrome://tracing or ui.perfetto.dev")
      ->configurable(false);
  options.add("--inspect-every", o.train.inspect_every,
              "Steps between profiles by layer (residual stream, gradients, batch statistics) in "
              "the metrics and in profile.svg, from step 0 on; 0: never");
  options
      .add("--prefix-eval", o.inspect.prefix_eval,
           "At the end, the loss with each prediction made from its prefix alone, on so many "
           "validation batches; 0: not")
      ->configurable(false);
  options
      .add("--recalibrate", o.inspect.recalibrate,
           "At the end, the losses with running and batch statistics, and with running ones "
           "estimated anew from so many training batches; 0: not")
      ->configurable(false);
  options
      .flag("--float16-norms", o.inspect.float16_norms,
            "At the end, the losses with the norms computed in float16, by emulation")
      ->configurable(false);
}

/// Declares every option. Those that are `configurable` make up the run: a checkpoint keeps them,
/// and resuming takes them from there.
inline void declare(CLI::App& app, TrainGptOptions& o) {
  set_option_defaults(app);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_config("--config", "", "Read options from a file: lines such as layers=6")
      ->check([](const std::string& path) {  // a device may have no end
        std::error_code ignored;
        return std::filesystem::is_character_file(path, ignored) ? path + " is a device" : "";
      });
  declare_run({app, "Run"}, o);
  declare_model({app, "Model"}, o);
  declare_training({app, "Training"}, o);
  declare_inspection({app, "Looking inside"}, o);
}

/// Puts what belongs together in one place.
inline void complete(TrainGptOptions& o) {
  o.model.tied = !o.untied;
  double& lowest = o.train.schedule.min_lr;
  lowest = std::min(lowest, o.train.schedule.lr);  // the default; one that was given is checked
}

}  // namespace tapeformer
