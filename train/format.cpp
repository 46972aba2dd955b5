#include "train/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace tapeformer {

std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string fixed(double value, int decimals) {
  char text[512];  // the largest double has 309 digits before the point
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed,
                                 decimals < 0     ? 0
                                 : decimals > 100 ? 100
                                                  : decimals);
  return {text, end.ptr};
}

std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  const int first_digit = value < 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first_digit; at -= 3) text.insert(at, ",");
  return text;
}

std::string compact(double value) {
  if (!std::isfinite(value)) return shortest(value);
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (std::abs(value) < 999.5) break;
    value /= 1000;
    unit = next;
  }
  const double size = std::abs(value);
  return fixed(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) + unit;
}

std::string duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t total = std::llround(seconds);
  const auto two_digits = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  const std::string end = ":" + two_digits(total % 60);
  return hours ? std::to_string(hours) + ":" + two_digits(minutes) + end
               : std::to_string(minutes) + end;
}

std::string shell_word(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+,:@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace tapeformer
