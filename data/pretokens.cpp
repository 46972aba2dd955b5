#include "data/pretokens.h"

#include <array>

#include "data/unicode.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

struct Character {
  CharacterClass kind;
  size_t bytes;
};

Character character_at(std::string_view text, size_t at) {
  static const std::array<CharacterClass, 128> ascii = [] {
    std::array<CharacterClass, 128> classes{};
    for (char32_t c = 0; c < 128; ++c) classes[c] = class_of(c);
    return classes;
  }();
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 128) return {ascii[byte], 1};
  const CodePoint point = code_point_at(text, at);
  const bool valid = point.status == CodePoint::Status::valid;
  return {valid ? class_of(point.value) : CharacterClass::other, point.bytes};
}

// The end of the run of characters of one kind that begins at `at`; `last` is where its last one
// begins.
struct Run {
  size_t end, last;
};

Run run_of(CharacterClass kind, std::string_view text, size_t at) {
  Run run{at, at};
  while (run.end < text.size()) {
    const Character next = character_at(text, run.end);
    if (next.kind != kind) break;
    run.last = run.end;
    run.end += next.bytes;
  }
  return run;
}

size_t contraction_length(std::string_view rest) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (rest.starts_with(ending)) return ending.size();
  return 0;
}

}  // namespace

size_t pretoken_length(std::string_view text, size_t at) {
  if (text[at] == '\'')
    if (const size_t length = contraction_length(text.substr(at))) return length;
  size_t begin = at;  // of the word behind its space
  if (text[at] == ' ' && at + 1 < text.size()) ++begin;
  const CharacterClass kind = character_at(text, begin).kind;
  if (kind != CharacterClass::space) return run_of(kind, text, begin).end - at;
  const Run run = run_of(CharacterClass::space, text, at);
  const bool leaves_one = run.end < text.size() && run.last > at;
  return (leaves_one ? run.last : run.end) - at;
}

}  // namespace tapeformer
