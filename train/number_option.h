// Numbers on a program's command line, of which the parser takes more than is meant: "" for 0, 010
// for 8, and for what is too large the largest.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <type_traits>

namespace tapeformer {

/// What is wrong with a text as a number of type T; empty: nothing.
template <class T>
std::string number_objection(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc{} && stop == end) return "";
    return "'" + text + "' is no number";
  } else {
    if (error == std::errc{} && text == std::to_string(value)) return "";
    return "'" + text + "' is no whole number from " +
           std::to_string(std::numeric_limits<T>::min()) + " to " +
           std::to_string(std::numeric_limits<T>::max());
  }
}

}  // namespace tapeformer
