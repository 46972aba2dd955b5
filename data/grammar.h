// A probabilistic grammar with memory: weighted rules as in a context-free grammar, and variables
// that are drawn once and used again, such as the hero of a story. It writes texts, parses them,
// and knows the exact entropy and mean length of what it writes.
//
// The notation, one rule after the other, the first being the start:
//
//   story                                  a rule's name; below it, indented, its alternatives
//     2 {hero := child}{hero} ran. {find}  of weight 2 (else 1): draws a variable, then writes it
//   child (name he)                        a rule to draw from: its alternatives have two forms
//     Mia | she / Tom | he                 / stands between alternatives that share a line
//   find
//     {Hero.he} saw a {new fish}: a        the form he with a capital; draws fish from the rule
//         {same fish}!                     fish and writes it; writes it again. A line indented
//     {}                                   by 6 or more goes on with the alternative above
//   fish
//     cod / pike
//
// {} is nothing, \n a newline, # begins a comment. {sight of place} is the rule "sight of beach"
// where the variable place is "beach". A variable lives to the end of the alternative that draws
// it, the rules used there included. Rules are not recursive, so that every text is finite.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/random.h"

namespace tapeformer {

class Grammar {
 public:
  /// Throws, naming the line, where `source` breaks the notation.
  explicit Grammar(std::string_view source);
  ~Grammar();

  /// Appends one text.
  void write(Generator& random, std::string& out) const;

  struct Parse {
    double log_probability;  // natural log of the sum over all derivations; -infinity where none
    double derivations;      // in how many ways the grammar writes this text
  };
  Parse parse(std::string_view text) const;

  struct Expectation {
    double entropy = 0;  // of the derivation in nats: of the text, where derivations are unique
    double length = 0;   // of the text, in bytes
  };
  Expectation expectation() const;

  struct Rules;  // grammar_rules.h

 private:
  std::unique_ptr<const Rules> rules_;
};

}  // namespace tapeformer
