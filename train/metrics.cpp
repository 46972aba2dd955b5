#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "data/json_text.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // layers stay in their order

struct Field {
  const char* name;
  std::optional<double> Metrics::*value;
};
constexpr Field fields[] = {{"train_loss", &Metrics::train_loss},
                            {"val_loss", &Metrics::val_loss},
                            {"lr", &Metrics::lr},
                            {"grad_norm", &Metrics::grad_norm},
                            {"tokens_per_second", &Metrics::tokens_per_second},
                            {"val_bleu", &Metrics::val_bleu}};

struct ObjectField {
  const char* name;
  std::vector<NamedValue> Metrics::*values;
};
constexpr ObjectField object_fields[] = {{"gradient_norms", &Metrics::gradient_norms},
                                         {"tid", &Metrics::tid}};

// Nothing unless a number or null.
std::optional<double> number(const json& value) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

// Reads the profile. False when it has another form.
bool parse_profile(const json& object, Metrics& metrics) {
  if (const auto found = object.find("stream_rms"); found != object.end()) {
    if (!found->is_array()) return false;
    for (const json& element : *found) {
      const std::optional<double> value = number(element);
      if (!value) return false;
      metrics.stream_rms.push_back(*value);
    }
  }
  for (const ObjectField& field : object_fields) {
    const auto found = object.find(field.name);
    if (found == object.end()) continue;
    if (!found->is_object()) return false;
    for (const auto& [name, element] : found->items()) {
      const std::optional<double> value = number(element);
      if (!value) return false;
      (metrics.*field.values).push_back({name, *value});
    }
  }
  return true;
}

// None when the line is not the JSON of metrics. Other fields are ignored.
std::optional<Metrics> parse(std::string_view line) {
  if (!is_modest_json(line)) return {};
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return {};
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return {};
  Metrics metrics;
  metrics.step = step->get<int64_t>();
  for (const Field& field : fields) {
    const auto found = object.find(field.name);
    if (found == object.end()) continue;
    metrics.*field.value = number(*found);
    if (!(metrics.*field.value)) return {};
  }
  return parse_profile(object, metrics) ? std::optional(metrics) : std::nullopt;
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

std::string lines_before(const fs::path& path, int64_t first_step, bool evaluates_again) {
  std::string kept;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return kept;
  for_each_line(read_file(path), [&](std::string_view line, bool complete) {
    const std::optional<Metrics> metrics = parse(line);
    if (!complete || !metrics || metrics->step >= first_step) return;
    if (evaluates_again && metrics->step == first_step - 1 && metrics->val_loss) return;
    kept.append(line) += '\n';
  });
  return kept;
}

// "-0" would be read as an integer, which has no sign.
std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  return value == 0 && std::signbit(value) ? "-0.0" : shortest(value);
}

// ,"name":[element(0),element(1),...] with the brackets given; nothing for no values.
template <class T, class F>
void append_list(std::string& line, const char* name, const std::vector<T>& values,
                 const char* brackets, const F& element) {
  if (values.empty()) return;
  line += std::string(",\"") + name + "\":" + brackets[0];
  for (size_t i = 0; i < values.size(); ++i) line += (i ? "," : "") + element(values[i]);
  line += brackets[1];
}

}  // namespace

std::string to_json(const Metrics& metrics) {
  std::string line = "{\"step\":" + std::to_string(metrics.step);
  for (const Field& field : fields)
    if (const std::optional<double>& value = metrics.*field.value)
      line += std::string(",\"") + field.name + "\":" + json_number(*value);
  append_list(line, "stream_rms", metrics.stream_rms, "[]", json_number);
  for (const ObjectField& field : object_fields)
    append_list(line, field.name, metrics.*field.values, "{}", [](const NamedValue& entry) {
      return json(entry.name).dump() + ":" + json_number(entry.value);
    });
  return line + "}";
}

MetricsWriter::MetricsWriter(const fs::path& path, int64_t first_step, bool evaluates_again)
    : path_(path) {
  write_file_atomically(path, lines_before(path, first_step, evaluates_again));
  open();
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsWriter::open() {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  check(descriptor_ >= 0, "metrics: cannot open ", path_.string(), ": ", std::strerror(errno));
}

void MetricsWriter::write(const Metrics& metrics) {
  // Without its name the file would take lines that nobody can read.
  if (::access(path_.c_str(), F_OK) != 0) {
    ::close(std::exchange(descriptor_, -1));
    open();
  }
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
