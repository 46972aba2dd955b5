// What was measured in training, as JSON lines: {"step":100,"train_loss":2.31,"lr":0.001}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tapeformer {

struct NamedValue {
  std::string name;
  double value = 0;
};

/// One line. What was not measured then is absent.
struct Metrics {
  int64_t step = 0;
  std::optional<double> train_loss = {}, val_loss = {}, lr = {}, grad_norm = {};
  std::optional<double> tokens_per_second = {};
  std::optional<double> val_bleu = {};
  // The profile by layer (profile.h); empty: absent.
  std::vector<double> stream_rms = {};          ///< [1.5,2.1,...]
  std::vector<NamedValue> gradient_norms = {};  ///< {"blocks.0.norm1.weight":0.1,...}
  std::vector<NamedValue> tid = {};
};

/// Numbers have the fewest digits that read back to the same double. JSON knows neither NaN nor
/// infinity: these are written as null, and read back as NaN.
std::string to_json(const Metrics& metrics);

class MetricsWriter {
 public:
  /// Starts the file, or continues it for a run that resumes at `first_step`: earlier lines are
  /// kept byte for byte; lines of this step and later ones, and what a crash left torn, are
  /// dropped. With `evaluates_again` the evaluation of the step before it is dropped too.
  explicit MetricsWriter(const std::filesystem::path& path, int64_t first_step = 0,
                         bool evaluates_again = false);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Appends a line and hands it to the system; to a new file where somebody removed this one.
  /// Throws Error when that fails (disk full).
  void write(const Metrics& metrics);

 private:
  void open();

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// All lines of a file; a torn last line is skipped, any other that is no metrics line is an Error.
std::vector<Metrics> read_metrics(const std::filesystem::path& path);

}  // namespace tapeformer
