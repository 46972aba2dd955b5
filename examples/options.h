// What the command lines of the programs share: groups of options, checks of their values, and the
// options that a resumed run keeps.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/threads.h"
#include "data/json_text.h"
#include "layers/initialization.h"
#include "train/checkpoint.h"
#include "train/format.h"
#include "train/number_option.h"
#include "train/option_failure.h"
#include "train/trainer.h"

namespace tapeformer {

/// The last of several values of an option counts, and --help shows the defaults.
inline void set_option_defaults(CLI::App& app) {
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
}

/// Names as --help lists them: "a, b, c".
inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Declares options under one heading of --help.
struct OptionGroup {
  CLI::App& app;
  std::string name;

  template <class T>
  CLI::Option* add(const char* option, T& value, const std::string& text) const {
    if constexpr (!std::is_arithmetic_v<T>) {
      return app.add_option(option, value, text)->group(name);
    } else {  // CLI11 would read and write them as the locale has it
      const auto read = [&value](const std::string& number) { read_number(number, value); };
      return app.add_option_function<std::string>(option, read, text)
          ->check(number_objection<T>)
          ->default_str(number_text(value))
          ->type_name(CLI::detail::type_name<T>())
          ->group(name);
    }
  }
  CLI::Option* flag(const char* option, bool& value, const std::string& text) const {
    return app.add_flag(option, value, text)->group(name);
  }
};

inline void declare_threads(const OptionGroup& options, int64_t& threads) {
  options.add("--threads", threads, "CPU threads; 0: all that this process may use")
      ->configurable(false);
}
inline void use_threads(int64_t threads) {
  check(threads >= 0 && threads <= 1024, "--threads must lie in 0 ... 1024, got ", threads);
  if (threads > 0) set_num_threads(static_cast<int>(threads));
}

inline void declare_device(const OptionGroup& options, std::string& device) {
  options.add("--device", device, "cpu, cuda or cuda:<index>");
}
/// In what numbers a model is trained, and where.
inline void declare_arithmetic(const OptionGroup& options, std::string& dtype,
                               std::string& device) {
  options.add("--dtype", dtype, "f32, f64, or with f32 master weights bf16 or f16");
  declare_device(options, device);
}
inline Device device_that_trains(const std::string& dtype, const std::string& device) {
  check(find_dtype(dtype) != DType::f64 || device == "cpu",
        "--dtype f64: a GPU trains in f32, bf16 or f16; use --device cpu");
  return find_device(device);
}

/// The shape of a model of one stack or two.
inline void declare_shape(const OptionGroup& options, TransformerConfig& model, bool& untied) {
  options.add("--heads", model.heads, "Attention heads; they divide the channels");
  options.add("--channels", model.channels, "Channels of the residual stream");
  options.add(
      "--hidden", model.hidden,
      "Width of the feed-forward network; 0: 4 times the channels, or as many parameters for "
      "swiglu");
  options.add("--norm", model.norm, listed(norm_names()));
  options.add("--placement", model.placement, listed(placement_names()));
  options.add("--initialization", model.initialization,
              listed(initialization_names()) + "; empty: what the placement asks for");
  options.add("--position", model.position, listed(position_names()));
  options.add("--activation", model.activation, listed(activation_names()));
  options.add("--dropout", model.dropout, "Of the embeddings and of every sub-layer's output");
  options.flag("--untied", untied,
               "An output projection of its own instead of the embedding table");
}

/// Updates, rates, and when to look and to end.
inline void declare_updates(const OptionGroup& options, TrainOptions& train) {
  options.add("--accumulate", train.accumulate, "Micro-batches per update");
  options.add("--steps", train.schedule.steps, "Updates at most, and the schedule's horizon");
  options.add("--lr", train.schedule.lr, "Peak learning rate");
  options.add("--min-lr", train.schedule.min_lr, "Learning rate at the end, at most the peak");
  options.add("--warmup", train.schedule.warmup, "Steps of linear rise to the peak");
  options.add("--schedule", train.schedule.name, listed(schedule_names()));
  options.add("--beta1", train.adamw.beta1, "AdamW: decay of the mean of the gradients");
  options.add("--beta2", train.adamw.beta2, "AdamW: decay of the mean of their squares");
  options.add("--weight-decay", train.adamw.weight_decay, "AdamW: of tensors with two dimensions");
  options.add("--clip", train.clip, "Largest global gradient norm; 0: no clipping");
  options.add("--eval-every", train.eval_every, "Steps between evaluations; 0: only at the end");
  options.add("--save-every", train.save_every,
              "Steps between checkpoints; 0: with every evaluation");
  options.add("--patience", train.patience,
              "Stop after so many evaluations without gain; 0: never");
}

/// The command that goes on with the run in a folder; `program` as it was called.
inline std::string resume_command(const std::string& program, const std::string& options,
                                  const std::string& folder) {
  return shell_word(program) + " " + options + " " + shell_word(folder);
}

/// Refuses a negative rate, and what would change nothing in a new run.
inline void check_updates(const CLI::App& app, const TrainOptions& train) {
  const ScheduleOptions& schedule = train.schedule;
  check(schedule.lr >= 0, "--lr must be at least 0, got ", schedule.lr);
  if (app.count("--min-lr")) {
    check(schedule.name != "constant" && schedule.name != "invsqrt", "--min-lr: the schedule '",
          schedule.name, "' does not end at a rate of its own");
    check(schedule.min_lr <= schedule.lr, "--min-lr ", schedule.min_lr, " is above --lr ",
          schedule.lr, ", so the rate would rise at the end");
  }
  check(train.patience == 0 || train.eval_every > 0,
        "--patience counts evaluations, and --eval-every 0 makes none before the end");
}

/// Says how many steps a run in f16 left out.
inline void print_skipped(const TrainResult& result) {
  if (result.skipped_steps)
    std::fprintf(stderr, "%s steps without an update: a gradient overflowed f16\n",
                 grouped(result.skipped_steps).c_str());
}

/// Whether a folder holds what a new run would overwrite.
inline bool holds_run(const std::filesystem::path& folder) {
  return has_checkpoint(folder) || std::filesystem::exists(folder / "metrics.jsonl");
}

/// What a program wrote into the checkpoint in a folder about its run: an object with these texts.
/// Throws where another program wrote it.
inline nlohmann::json read_kept_run(const std::string& folder, const std::string& program,
                                    const std::vector<std::string>& texts) {
  const std::string description = read_model_file(folder).run;
  const auto run =
      is_modest_json(description) ? nlohmann::json::parse(description, nullptr, false) : nullptr;
  bool known = run.is_object();
  for (const std::string& text : texts)
    known = known && run.contains(text) && run[text].is_string();
  check(known, folder, ": not a checkpoint of ", program);
  return run;
}

/// Reads the options of a run, as its checkpoint keeps them, into the variables that `declared`
/// was declared with. Those that were given again in `app` must agree with them: a run keeps its
/// options, but not where it computes. The others (not `configurable`) are each call's own.
inline void read_kept_options(CLI::App& declared, const std::string& kept, const CLI::App& app,
                              const std::string& folder) {
  // The same number, or the same word.
  const auto same = [](const std::string& a, const std::string& b) {
    double x = 0, y = 0;
    return a == b || (read_number(a, x) && read_number(b, y) && x == y);
  };
  std::istringstream text(kept);
  declared.parse_from_stream(text);
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_configurable() || option->count() == 0) continue;
    if (option->get_name() == "--device") continue;
    const auto has = declared.get_option(option->get_name())->as<std::string>();
    const auto given = option->as<std::string>();
    check(
        same(has, given), option->get_name(), " ", given, ": the run in ", folder, " has ", has,
        ", and a resumed run keeps it; leave the option out, or start a new run in another --out");
  }
}

}  // namespace tapeformer
