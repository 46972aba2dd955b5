// What kind of character a code point is, and its lower-case form: Unicode's tables, by utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace tapeformer {

enum class CharacterClass { other, space, letter, number };

/// By general category: L* letters, N* numbers; spaces are those of the property White_Space.
CharacterClass class_of(char32_t character);

/// Every character in its lower-case form, as in Unicode's full mapping without languages (and
/// Python's str.lower): İ becomes two characters, and a Σ that ends a word becomes ς. Bytes that
/// are no UTF-8 stay.
std::string lower_case(std::string_view text);

}  // namespace tapeformer
