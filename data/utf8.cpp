#include "data/utf8.h"

#include <cstdint>
#include <cstdio>

namespace tapeformer {

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const CodePoint invalid{0xFFFD, 1, CodePoint::Status::invalid};
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1, CodePoint::Status::valid};
  if (lead < 0xC2 || lead > 0xF4) return invalid;  // C0 and C1 could begin overlong forms only
  const size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t value = lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (at + i == text.size()) return {0xFFFD, i, CodePoint::Status::incomplete};
    const uint8_t next = byte(at + i);
    if ((next & 0xC0) != 0x80) return invalid;
    if (i == 1) {  // overlong forms, surrogates, beyond U+10FFFF
      if ((lead == 0xE0 && next < 0xA0) || (lead == 0xF0 && next < 0x90)) return invalid;
      if ((lead == 0xED && next > 0x9F) || (lead == 0xF4 && next > 0x8F)) return invalid;
    }
    value = value << 6 | (next & 0x3F);
  }
  return {value, bytes, CodePoint::Status::valid};
}

std::string to_utf8(char32_t value) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (value >> shift & 0x3F)); };
  if (value < 0x80) return {static_cast<char>(value)};
  if (value < 0x800) return {static_cast<char>(0xC0 | value >> 6), tail(0)};
  if (value < 0x10000) return {static_cast<char>(0xE0 | value >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | value >> 18), tail(12), tail(6), tail(0)};
}

std::string describe(char32_t value) {
  char code[16];
  std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(value));
  const bool control = value < 0x20 || (value >= 0x7F && value < 0xA0);
  return control ? code : "'" + to_utf8(value) + "' (" + code + ")";
}

std::string Utf8Stream::push(std::string_view piece) {
  waiting_ += piece;
  std::string ready;
  size_t at = 0;
  while (at < waiting_.size()) {
    const CodePoint point = code_point_at(waiting_, at);
    if (point.status == CodePoint::Status::incomplete) break;
    ready += to_utf8(point.value);
    at += point.bytes;
  }
  waiting_.erase(0, at);
  return ready;
}

std::string Utf8Stream::finish() {
  const bool incomplete = !waiting_.empty();
  waiting_.clear();
  return incomplete ? to_utf8(0xFFFD) : "";
}

}  // namespace tapeformer
