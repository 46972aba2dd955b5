// Tensors by name in a file, in the safetensors format: an 8-byte little-endian length, a JSON
// header {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {text: text}} of
// that length, and the data, row-major and little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "train/files.h"

namespace tapeformer {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using Metadata = std::map<std::string, std::string>;

/// Writes the file atomically; equal content gives equal bytes. Tensors of larger elements come
/// first, otherwise in the order given. Throws for a name that occurs twice.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const Metadata& metadata = {});

/// Reads a safetensors file. The constructor reads and checks the header only, and trusts nothing
/// in it: whatever the file holds, the outcome is a value or an Error that names file and reason.
class Safetensors {
 public:
  struct Entry {
    std::string name;
    std::string dtype;  // as the file spells it: F32, F64, F16, BF16, I32 can be read
    std::vector<int64_t> shape;
    uint64_t begin, end;  // bytes, from the start of the data
  };

  explicit Safetensors(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In the order of the data.
  const std::vector<Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }
  /// Null when there is no such tensor.
  const Entry* find(const std::string& name) const;

  /// Throws when there is no such tensor, or the library has no such dtype or rank.
  Tensor read(const std::string& name, Device device = Device::cpu) const;
  /// Overwrites `tensor`, which must have the dtype and shape of the file's.
  void read_into(const std::string& name, const Tensor& tensor) const;

 private:
  void check_layout();
  const Entry& get(const std::string& name) const;

  FileReader file_;
  uint64_t data_start_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> index_;
  Metadata metadata_;
};

/// The file's word for a dtype: "F32".
const char* safetensors_name(DType dtype);

}  // namespace tapeformer
