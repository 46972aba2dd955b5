#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Field {
  const char* name;
  std::optional<double> Metrics::*value;
};
constexpr Field fields[] = {{"train_loss", &Metrics::train_loss},
                            {"val_loss", &Metrics::val_loss},
                            {"lr", &Metrics::lr},
                            {"grad_norm", &Metrics::grad_norm},
                            {"tokens_per_second", &Metrics::tokens_per_second}};

// None when the line is not the JSON of metrics. Other fields are ignored.
std::optional<Metrics> parse(std::string_view line) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return {};
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return {};
  Metrics metrics;
  metrics.step = step->get<int64_t>();
  for (const Field& field : fields) {
    const auto found = object.find(field.name);
    if (found == object.end()) continue;
    if (!found->is_number() && !found->is_null()) return {};
    metrics.*field.value =
        found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();
  }
  return metrics;
}

// Calls f(line, complete) for every line; the last is incomplete when no newline ends it.
template <class F>
void for_each_line(std::string_view text, const F& f) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const bool complete = end != std::string_view::npos;
    f(text.substr(0, end), complete);
    text.remove_prefix(complete ? end + 1 : text.size());
  }
}

std::string lines_before(const fs::path& path, int64_t first_step) {
  std::string kept;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return kept;
  for_each_line(read_file(path), [&](std::string_view line, bool complete) {
    const std::optional<Metrics> metrics = parse(line);
    if (complete && metrics && metrics->step < first_step) kept.append(line) += '\n';
  });
  return kept;
}

// "-0" would be read as an integer, which has no sign.
std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  return value == 0 && std::signbit(value) ? "-0.0" : shortest(value);
}

}  // namespace

std::string to_json(const Metrics& metrics) {
  std::string line = "{\"step\":" + std::to_string(metrics.step);
  for (const Field& field : fields)
    if (const std::optional<double>& value = metrics.*field.value)
      line += std::string(",\"") + field.name + "\":" + json_number(*value);
  return line + "}";
}

MetricsWriter::MetricsWriter(const fs::path& path, int64_t first_step) : path_(path) {
  write_file_atomically(path, lines_before(path, first_step));
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  check(descriptor_ >= 0, "metrics: cannot open ", path.string(), ": ", std::strerror(errno));
}

MetricsWriter::~MetricsWriter() { ::close(descriptor_); }

void MetricsWriter::write(const Metrics& metrics) {
  const std::string line = to_json(metrics) + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    check(count > 0, "metrics: cannot write ", path_.string(), ": ", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
}

std::vector<Metrics> read_metrics(const fs::path& path) {
  std::vector<Metrics> result;
  int64_t number = 0;
  for_each_line(read_file(path), [&](std::string_view line, bool complete) {
    ++number;
    if (!complete) return;
    const std::optional<Metrics> metrics = parse(line);
    check(metrics.has_value(), "metrics: ", path.string(), ", line ", number,
          " is not of the form {\"step\": 1, \"train_loss\": 2.5, ...}");
    result.push_back(*metrics);
  });
  return result;
}

}  // namespace tapeformer
