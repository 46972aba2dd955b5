// Numbers on a program's command line, the same under every locale. The program's parser takes more
// than is meant: "" for 0, 010 for 8, and for what is too large the largest.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <type_traits>

#include "train/format.h"

namespace tapeformer {

/// A number as read_number() reads it.
template <class T>
std::string number_text(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return shortest(value);
  else
    return std::to_string(value);
}

/// Whether a text is a number of type T, which `value` then has.
template <class T>
bool read_number(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end;
}

/// What is wrong with a text as a number of type T; empty: nothing.
template <class T>
std::string number_objection(const std::string& text) {
  T value{};
  const bool read = read_number(text, value);
  if constexpr (std::is_floating_point_v<T>) {
    return read ? "" : "'" + text + "' is no number";
  } else {
    if (read && text == number_text(value)) return "";
    return "'" + text + "' is no whole number from " + number_text(std::numeric_limits<T>::min()) +
           " to " + number_text(std::numeric_limits<T>::max());
  }
}

}  // namespace tapeformer
