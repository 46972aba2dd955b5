#include "data/unicode.h"

#include <utf8proc.h>

#include <vector>

#include "data/utf8.h"

namespace tapeformer {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// By category, or because it has another case, as the Roman numeral Ⅷ. (Of Unicode's property Cased
// the modifier letters are missing: they are ignorable besides.)
bool is_cased(char32_t c) {
  const utf8proc_category_t of = category(c);
  const auto code = static_cast<utf8proc_int32_t>(c);
  return of == UTF8PROC_CATEGORY_LU || of == UTF8PROC_CATEGORY_LL || of == UTF8PROC_CATEGORY_LT ||
         utf8proc_tolower(code) != code || utf8proc_toupper(code) != code;
}

// Marks and the like, which a word has beside its letters (Unicode 3.13, D136, by category).
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

// Whether a cased letter stands before (step -1) or after (step 1) position i.
bool has_cased_neighbour(const std::vector<CodePoint>& points, size_t i, int step) {
  for (size_t j = i + step; j < points.size(); j += step) {  // before 0 comes the largest size_t
    if (is_case_ignorable(points[j].value)) continue;
    return is_cased(points[j].value);
  }
  return false;
}

constexpr char32_t sigma = 0x3A3, final_sigma = 0x3C2, dotted_i = 0x130, dot_above = 0x307;

}  // namespace

CharacterClass class_of(char32_t c) {
  if (is_white_space(c)) return CharacterClass::space;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::number;
    default:
      return CharacterClass::other;
  }
}

std::string lower_case(std::string_view text) {
  std::vector<CodePoint> points;
  for (size_t at = 0; at < text.size(); at += points.back().bytes)
    points.push_back(code_point_at(text, at));
  std::string lower;
  lower.reserve(text.size());
  size_t at = 0;
  for (size_t i = 0; i < points.size(); at += points[i].bytes, ++i) {
    const char32_t c = points[i].value;
    if (points[i].status != CodePoint::Status::valid)
      lower += text.substr(at, points[i].bytes);
    else if (c < 0x80)
      lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    else if (c == dotted_i)
      lower += "i" + to_utf8(dot_above);
    else if (c == sigma && has_cased_neighbour(points, i, -1) && !has_cased_neighbour(points, i, 1))
      lower += to_utf8(final_sigma);
    else
      lower += to_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
  return lower;
}

}  // namespace tapeformer
