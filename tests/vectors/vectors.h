// Reads the reference numbers in this folder and compares tensors with them. It reads safetensors
// by itself, so that the library's own reader is not its own judge.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "tests/catch.h"
#include "tests/compare.h"

namespace tapeformer::vectors {

using Named = std::map<std::string, Tensor>;

inline std::string read_file(const std::string& name) {
  const std::string path = std::string(TAPEFORMER_SOURCE_DIR) + "/tests/vectors/" + name;
  std::ifstream file(path, std::ios::binary);
  check(file.good(), "vectors: cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline nlohmann::json read_json(const std::string& name) {
  return nlohmann::json::parse(read_file(name));
}

/// {"shape": [...], "values": [...]} as a tensor of the given type.
inline Tensor tensor_from(const nlohmann::json& held, DType dtype) {
  const Shape shape(held.at("shape").get<std::vector<int64_t>>());
  const auto values = held.at("values").get<std::vector<double>>();
  const Tensor exact = Tensor::from(values, shape);
  if (dtype == DType::f64) return exact;
  if (dtype == DType::i32)
    return Tensor::from(std::vector<int32_t>(values.begin(), values.end()), shape);
  const Tensor rounded = Tensor::empty(shape, dtype);
  rounded.copy_from(exact);
  return rounded;
}

inline Named tensors_from(const nlohmann::json& held, DType dtype) {
  Named tensors;
  for (const auto& [name, tensor] : held.items()) tensors[name] = tensor_from(tensor, dtype);
  return tensors;
}

/// All tensors (F32, F64) of a safetensors file.
inline Named read_safetensors(const std::string& name) {
  const std::string text = read_file(name);
  uint64_t header_size = 0;
  std::memcpy(&header_size, text.data(), 8);
  const auto header = nlohmann::json::parse(text.substr(8, header_size));
  Named tensors;
  for (const auto& [key, entry] : header.items()) {
    const DType dtype = entry.at("dtype") == "F64" ? DType::f64 : DType::f32;
    const Shape shape(entry.at("shape").get<std::vector<int64_t>>());
    tensors[key] = Tensor::empty(shape, dtype);
    const size_t begin = 8 + header_size + entry.at("data_offsets").at(0).get<size_t>();
    check(begin + tensors[key].bytes() <= text.size(), "vectors: ", name, " is cut off");
    std::memcpy(tensors[key].raw(), text.data() + begin, tensors[key].bytes());
  }
  return tensors;
}

/// Every element within `tolerance` of the expected one, relative to the largest expected one.
inline void expect_close(const std::string& what, const Tensor& got, const Tensor& expected,
                         double tolerance) {
  INFO(what << ", " << name_of(got.dtype()));
  REQUIRE(got.numel() == expected.numel());
  const auto a = values_of(got), b = values_of(expected);
  double largest = 0, worst = 0;
  for (const double value : b) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  CHECK(worst <= tolerance * largest);
}

}  // namespace tapeformer::vectors
