#include "train/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace tapeformer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t max_header = 100'000'000;  // the limit of the reference implementation
constexpr const char* metadata_key = "__metadata__";

struct Format {
  const char* name;
  uint64_t bytes;
  std::optional<DType> dtype;  // none: a file may hold it, but it cannot be read
};
constexpr Format formats[] = {
    {"F32", 4, DType::f32}, {"F64", 8, DType::f64},
    {"F16", 2, DType::f16}, {"BF16", 2, DType::bf16},
    {"I32", 4, DType::i32}, {"BOOL", 1, {}},
    {"U8", 1, {}},          {"I8", 1, {}},
    {"F8_E5M2", 1, {}},     {"F8_E4M3", 1, {}},
    {"U16", 2, {}},         {"I16", 2, {}},
    {"U32", 4, {}},         {"U64", 8, {}},
    {"I64", 8, {}},
};

const Format* find_format(const std::string& name) {
  for (const Format& format : formats)
    if (name == format.name) return &format;
  return nullptr;
}

// Text from a file for a message: quoted, control characters escaped, of bounded length.
std::string readable(const std::string& text) {
  constexpr size_t limit = 120;
  std::string result =
      json(text.substr(0, limit)).dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > limit ? result + "..." : result;
}

// Reads the header as it streams by, so that nothing is built but entries: JSON of any depth or
// kind that the format does not have ends the parse at once.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  std::vector<Safetensors::Entry> entries;
  Metadata metadata;
  std::string reason;  // why the parse ended early

  bool start_object(size_t) override {
    if (place_ == Place::start) return go(Place::top);
    if (place_ != Place::top_value) return refuse();
    if (name_ == metadata_key) return go(Place::metadata);
    entries.push_back({name_, "", {}, 0, 0});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return go(Place::tensor);
  }
  bool key(std::string& key) override {
    switch (place_) {
      case Place::top:
        if (!names_.insert(key).second) return stop(readable(key) + " occurs twice");
        name_ = key;
        return go(Place::top_value);
      case Place::metadata:
        if (metadata.contains(key)) return stop("metadata " + readable(key) + " occurs twice");
        name_ = key;
        return go(Place::metadata_value);
      case Place::tensor:
        if (key == "dtype") return field(has_dtype_, Place::dtype);
        if (key == "shape") return field(has_shape_, Place::shape);
        if (key == "data_offsets") return field(has_offsets_, Place::offsets);
        return stop("tensor " + readable(name_) + " has an unknown field " + readable(key));
      default:
        return refuse();
    }
  }
  bool end_object() override {
    if (place_ == Place::top) return go(Place::end);
    if (place_ == Place::tensor && !(has_dtype_ && has_shape_ && has_offsets_))
      return stop("tensor " + readable(name_) + " lacks dtype, shape or data_offsets");
    return go(Place::top);
  }
  bool start_array(size_t) override {
    if (place_ == Place::shape) return go(Place::shape_items);
    if (place_ == Place::offsets) return go(Place::offset_items);
    return refuse();
  }
  bool end_array() override {
    if (place_ == Place::offset_items) {
      if (offsets_.size() != 2)
        return stop("tensor " + readable(name_) + " needs two data_offsets");
      entries.back().begin = offsets_[0];
      entries.back().end = offsets_[1];
      offsets_.clear();
    }
    return go(Place::tensor);
  }
  bool string(std::string& text) override {
    if (place_ == Place::metadata_value) {
      metadata[name_] = text;
      return go(Place::metadata);
    }
    if (place_ != Place::dtype) return refuse();
    entries.back().dtype = text;
    return go(Place::tensor);
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape_items && value <= INT64_MAX) {
      entries.back().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::offset_items || offsets_.size() == 2) return refuse();
    offsets_.push_back(value);
    return true;
  }
  bool number_integer(int64_t) override { return refuse(); }
  bool number_float(double, const std::string&) override { return refuse(); }
  bool boolean(bool) override { return refuse(); }
  bool null() override { return refuse(); }
  bool binary(json::binary_t&) override { return refuse(); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return stop("the header is no valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place {
    start,
    top,
    top_value,
    metadata,
    metadata_value,
    tensor,
    dtype,
    shape,
    shape_items,
    offsets,
    offset_items,
    end
  };
  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool field(bool& seen, Place place) {
    if (seen) return stop("tensor " + readable(name_) + " has a field twice");
    seen = true;
    return go(place);
  }
  bool stop(const std::string& why) {
    reason = why;
    return false;
  }
  bool refuse() {
    return stop(name_.empty() ? "the header is not of the form {name: {dtype, shape, data_offsets}}"
                              : "the header has a value of the wrong kind at " + readable(name_));
  }

  Place place_ = Place::start;
  std::string name_;
  std::set<std::string> names_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

std::string json_string(const fs::path& path, const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail("safetensors: ", path.string(), ": names and metadata must be UTF-8, got ",
         readable(text));
  }
}

}  // namespace

const char* safetensors_name(DType dtype) {
  for (const Format& format : formats)
    if (format.dtype == dtype) return format.name;
  fail("safetensors: no name for dtype ", dtype);
}

void save_safetensors(const fs::path& path, const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<std::pair<std::string, Tensor>> sorted = tensors;
  // Large elements first keep every tensor aligned to its elements.
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return size_of(a.second.dtype()) > size_of(b.second.dtype());
  });

  std::string header = "{";
  const auto separate = [&] { header += header.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    header += std::string("\"") + metadata_key + "\":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata) {
      header += separator + json_string(path, key) + ":" + json_string(path, value);
      separator = ",";
    }
    header += "}";
  }
  std::set<std::string> names;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : sorted) {
    check(name != metadata_key && names.insert(name).second, "safetensors: ", path.string(),
          ": two tensors are named ", readable(name));
    const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    separate();
    header += json_string(path, name) + ":{\"dtype\":\"" + safetensors_name(tensor.dtype()) +
              "\",\"shape\":" + json(shape).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(offset + tensor.bytes()) + "]}";
    offset += tensor.bytes();
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  write_file_atomically(path, [&](FileWriter& file) {
    const uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header);
    for (const auto& [name, tensor] : sorted) {
      Tensor host = tensor;
      if (tensor.device() != Device::cpu) {
        host = Tensor::empty(tensor.shape(), tensor.dtype());
        host.copy_from(tensor);
      }
      file.write(host.raw(), host.bytes());
    }
  });
}

Safetensors::Safetensors(const fs::path& path) : file_(path) {
  const auto require = [&](bool condition, const auto&... parts) {
    check(condition, "safetensors: ", path.string(), ": ", parts...);
  };
  require(file_.size() >= 8, "is no safetensors file: it has ", file_.size(),
          " bytes, less than a header");
  uint64_t length = 0;
  file_.read(&length, sizeof length, 0);
  require(length <= file_.size() - 8,
          "is truncated or no safetensors file: the header should have ", length,
          " bytes, the file has ", file_.size());
  require(length <= max_header, "the header has ", length, " bytes, more than ", max_header);
  std::string header(length, '\0');
  file_.read(header.data(), length, 8);
  data_start_ = 8 + length;

  // The parser would take a NUL for the end, and a byte order mark for nothing.
  require(header.starts_with('{') && header.find('\0') == std::string::npos,
          "is no safetensors file: the header is no JSON object");
  HeaderReader reader;
  require(json::sax_parse(header, &reader), reader.reason);
  entries_ = std::move(reader.entries);
  metadata_ = std::move(reader.metadata);
  check_layout();
}

// The data of the tensors, in order, must fill the rest of the file without hole or overlap.
void Safetensors::check_layout() {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const uint64_t available = file_.size() - data_start_;
  uint64_t position = 0;
  for (const Entry& entry : entries_) {
    const auto require = [&](bool condition, const auto&... parts) {
      check(condition, "safetensors: ", path().string(), ": tensor ", readable(entry.name), ": ",
            parts...);
    };
    const Format* format = find_format(entry.dtype);
    require(format != nullptr, "unknown dtype ", readable(entry.dtype));
    uint64_t bytes = format->bytes;
    for (const int64_t size : entry.shape)
      require(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes),
              "its shape has too many elements");
    require(entry.begin <= entry.end && entry.end - entry.begin == bytes, "data_offsets [",
            entry.begin, ", ", entry.end, "] do not hold the ", bytes, " bytes of its shape");
    require(entry.begin == position, "its data begins at ", entry.begin, ", expected ", position,
            ": the file has a hole or an overlap");
    require(entry.end <= available, "its data ends at ", entry.end, ", but the file has only ",
            available, " bytes of data: it is truncated");
    position = entry.end;
    index_[entry.name] = static_cast<size_t>(&entry - entries_.data());
  }
  check(position == available, "safetensors: ", path().string(), ": has ", available - position,
        " bytes after the last tensor");
}

const Safetensors::Entry* Safetensors::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const Safetensors::Entry& Safetensors::get(const std::string& name) const {
  const Entry* entry = find(name);
  check(entry != nullptr, "safetensors: ", path().string(), ": has no tensor ", readable(name));
  return *entry;
}

Tensor Safetensors::read(const std::string& name, Device device) const {
  const Entry& entry = get(name);
  const Format* format = find_format(entry.dtype);
  check(format->dtype.has_value(), "safetensors: ", path().string(), ": tensor ", readable(name),
        ": dtype ", entry.dtype, " cannot be read; F32, F64, F16, BF16 and I32 can");
  check(entry.shape.size() <= Shape::max_rank, "safetensors: ", path().string(), ": tensor ",
        readable(name), ": has ", entry.shape.size(), " dimensions, at most ", Shape::max_rank,
        " can be read");
  const Tensor result = Tensor::empty(Shape(entry.shape), *format->dtype, device);
  read_into(name, result);
  return result;
}

void Safetensors::read_into(const std::string& name, const Tensor& tensor) const {
  const Entry& entry = get(name);
  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  check(entry.dtype == safetensors_name(tensor.dtype()) && entry.shape == shape,
        "safetensors: ", path().string(), ": tensor ", readable(name), ": expected ",
        safetensors_name(tensor.dtype()), " ", tensor.shape(), ", found ", entry.dtype, " ",
        entry.shape);
  Tensor host = tensor;
  if (tensor.device() != Device::cpu) host = Tensor::empty(tensor.shape(), tensor.dtype());
  file_.read(host.raw(), host.bytes(), data_start_ + entry.begin);
  if (!host.is(tensor)) tensor.copy_from(host);
}

}  // namespace tapeformer
