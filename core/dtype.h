// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

#include "core/check.h"

namespace tapeformer {

/// bf16 and f16 are storage formats; operations refuse them for now.
enum class DType : uint8_t { f32, f64, bf16, f16, i32 };

inline const char* name_of(DType dtype) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "i32"};
  return names[static_cast<int>(dtype)];
}

inline size_t size_of(DType dtype) {
  constexpr size_t sizes[] = {4, 8, 2, 2, 4};
  return sizes[static_cast<int>(dtype)];
}

inline bool is_floating(DType dtype) { return dtype != DType::i32; }

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

template <class T>
constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no tensor holds elements of this C++ type");
  return DType::f32;
}();
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;

/// Calls f(float{}) or f(double{}) by dtype: how a kernel picks its arithmetic type.
/// Throws for 16-bit and integer types, naming the operation.
template <class F>
void dispatch_floating(const char* operation, DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    default:
      fail(operation, ": computes in f32 or f64, got ", dtype,
           "; convert with cast(x, DType::f32)");
  }
}

}  // namespace tapeformer
