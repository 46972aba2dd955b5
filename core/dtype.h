// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include "core/check.h"
#include "core/half.h"

namespace tapeformer {

/// bf16 and f16 are storage formats (core/half.h): arithmetic and sums are f32.
enum class DType : uint8_t { f32, f64, bf16, f16, i32 };

inline const char* name_of(DType dtype) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "i32"};
  return names[static_cast<int>(dtype)];
}

/// The floating dtype of that name. Throws for others, listing them.
inline DType find_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (name == name_of(dtype)) return dtype;
  fail("dtype: there is no \"", name, "\"; known are f32, f64, bf16, f16");
}

inline size_t size_of(DType dtype) {
  constexpr size_t sizes[] = {4, 8, 2, 2, 4};
  return sizes[static_cast<int>(dtype)];
}

inline bool is_floating(DType dtype) { return dtype != DType::i32; }
inline bool is_16bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
/// What numbers of this dtype are computed and summed in: f32 for the 16-bit ones.
inline DType wide(DType dtype) { return is_16bit(dtype) ? DType::f32 : dtype; }

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
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;

/// Calls f(float{}) or f(double{}) by dtype: how a kernel picks its arithmetic type.
/// Throws for 16-bit and integer types, naming the operation.
template <class F>
void dispatch_wide(const char* operation, DType dtype, F&& f) {
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

/// Calls f(T{}) with the element type of a floating dtype, in which a kernel reads and writes; it
/// computes in Wide<T>. Throws for integers, naming the operation.
template <class F>
void dispatch_floating(const char* operation, DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::i32:
      fail(operation, ": needs floating-point numbers, got ", dtype,
           "; convert with cast(x, DType::f32)");
    default:
      return dispatch_wide(operation, dtype, f);
  }
}

}  // namespace tapeformer
