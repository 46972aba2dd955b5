// Cutting a text into words before byte-pair encoding merges within them, as GPT-2 does.
#pragma once

#include <string_view>

namespace tapeformer {

/// The length in bytes of the word that begins at byte `at` < text.size(), by the first of these
/// that fits (Radford et al. 2019; in the notation of regular expressions):
///   's|'t|'re|'ve|'m|'ll|'d   the ends of English contractions
///   ' '?\p{L}+                letters, with the space before them
///   ' '?\p{N}+                numbers
///   ' '?[^\s\p{L}\p{N}]+      neither space, letter nor number; so are bytes that are no UTF-8
///   \s+(?!\S)                 white space up to the last before something else
///   \s+                       white space
size_t pretoken_length(std::string_view text, size_t at);

/// Calls f(word) for each word of a text, in order.
template <class F>
void for_pretokens(std::string_view text, const F& f) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = pretoken_length(text, at);
    f(text.substr(at, length));
    at += length;
  }
}

}  // namespace tapeformer
