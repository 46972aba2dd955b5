// UTF-8: reading code points, and streaming text whose characters arrive in parts.
#pragma once

#include <string>
#include <string_view>

namespace tapeformer {

struct CodePoint {
  enum class Status { valid, invalid, incomplete };
  char32_t value = 0;
  size_t bytes = 0;  // taken from the text; 1 when invalid, what is left when incomplete
  Status status = Status::valid;
};

/// The code point that begins at byte `at` < text.size(). Incomplete: the text ends before the
/// character does. Overlong forms, surrogates and values beyond U+10FFFF are invalid.
CodePoint code_point_at(std::string_view text, size_t at);

std::string to_utf8(char32_t value);
/// A character as a message shows it: 'é' (U+00E9), or U+000A where it is not printable.
std::string describe(char32_t value);

/// Turns pieces that may end within a character into pieces that do not: what push() returns is
/// always valid UTF-8, invalid bytes become U+FFFD, an incomplete character waits for its rest.
class Utf8Stream {
 public:
  std::string push(std::string_view piece);
  /// What still waits, as U+FFFD.
  std::string finish();

 private:
  std::string waiting_;
};

}  // namespace tapeformer
