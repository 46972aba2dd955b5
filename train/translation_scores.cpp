#include "train/translation_scores.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/check.h"
#include "data/unicode.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_point(char c) { return c == '.' || c == ','; }
// ASCII punctuation but for ' - . and ,
bool is_mark(char c) {
  return (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') || c == '/' || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
}

// Replaces neighbours (a, b) for which `apart(a, b)` holds by `write(a, b)`, from left to right,
// each character in one match at most. Works on bytes, because the rules know ASCII alone.
template <class Apart, class Write>
std::string separate(const std::string& text, const Apart& apart, const Write& write) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && apart(text[i], text[i + 1])) {
      out += write(text[i], text[i + 1]);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

// White space as Python's str.split() knows it: that of Unicode and four separators of ASCII.
bool separates(char32_t c) {
  return class_of(c) == CharacterClass::space || (c >= 0x1C && c <= 0x1F);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool space = point.status == CodePoint::Status::valid && separates(point.value);
    if (!space && !inside) words.emplace_back();
    if (!space) words.back() += text.substr(at, point.bytes);
    inside = !space;
    at += point.bytes;
  }
  return words;
}

void check_lines(const char* score, const std::vector<std::string>& hypotheses,
                 const std::vector<std::string>& references) {
  check(hypotheses.size() == references.size(), score, ": ", hypotheses.size(), " hypotheses and ",
        references.size(), " references; line i belongs to line i");
}

struct Matches {
  int64_t hypothesis = 0, reference = 0, common = 0;
};

/// Of the n-grams of two sequences of `Unit`s.
template <class Sequence>
Matches count_matches(const Sequence& hypothesis, const Sequence& reference, size_t n) {
  // A gram as the sequence of its units; a unit may be a string, so its end is kept.
  const auto grams = [n](const Sequence& units) {
    std::unordered_map<std::string, int64_t> counts;
    for (size_t i = 0; i + n <= units.size(); ++i) {
      std::string gram;
      for (size_t j = i; j < i + n; ++j) (gram += units[j]) += '\n';
      ++counts[gram];
    }
    return counts;
  };
  const auto size = [n](const Sequence& units) {
    return units.size() < n ? 0 : static_cast<int64_t>(units.size() - n + 1);
  };
  Matches matches{size(hypothesis), size(reference), 0};
  const auto expected = grams(reference);
  for (const auto& [gram, count] : grams(hypothesis))
    if (const auto found = expected.find(gram); found != expected.end())
      matches.common += std::min(count, found->second);
  return matches;
}

std::vector<std::string> characters_of(std::string_view line) {
  std::vector<std::string> characters;
  for (const std::string& word : words_of(line))
    for (size_t at = 0; at < word.size();) {
      const size_t bytes = code_point_at(word, at).bytes;
      characters.push_back(word.substr(at, bytes));
      at += bytes;
    }
  return characters;
}

std::string case_of(bool lowercase) { return lowercase ? "lc" : "mixed"; }

}  // namespace

std::string tokenize_13a(std::string_view line) {
  std::string text(line);
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  std::string marked = " ";
  for (const char c : text) marked += is_mark(c) ? std::string{' ', c, ' '} : std::string{c};
  marked += ' ';
  // A point or comma unless a digit stands before it, then unless one follows, then a dash behind
  // a digit.
  marked = separate(
      marked, [](char a, char b) { return !is_digit(a) && is_point(b); },
      [](char a, char b) {
        return std::string{a, ' ', b, ' '};
      });
  marked = separate(
      marked, [](char a, char b) { return is_point(a) && !is_digit(b); },
      [](char a, char b) {
        return std::string{' ', a, ' ', b};
      });
  marked = separate(
      marked, [](char a, char b) { return is_digit(a) && b == '-'; },
      [](char a, char b) {
        return std::string{a, ' ', b, ' '};
      });
  std::string tokens;
  for (const std::string& word : words_of(marked)) tokens += (tokens.empty() ? "" : " ") + word;
  return tokens;
}

Bleu bleu(const std::vector<std::string>& hypotheses, const std::vector<std::string>& references,
          bool lowercase) {
  check_lines("bleu", hypotheses, references);
  std::array<Matches, 4> orders;
  const auto tokens_of = [&](const std::string& line) {
    return words_of(tokenize_13a(lowercase ? lower_case(line) : line));
  };
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const auto hypothesis = tokens_of(hypotheses[i]), reference = tokens_of(references[i]);
    for (size_t n = 1; n <= 4; ++n) {
      const Matches matches = count_matches(hypothesis, reference, n);
      orders[n - 1].hypothesis += matches.hypothesis;
      orders[n - 1].reference += matches.reference;
      orders[n - 1].common += matches.common;
    }
  }
  Bleu result;
  result.hypothesis_tokens = orders[0].hypothesis;
  result.reference_tokens = orders[0].reference;
  const double c = static_cast<double>(orders[0].hypothesis);
  const double r = static_cast<double>(orders[0].reference);
  if (c < r) result.brevity_penalty = c > 0 ? std::exp(1 - r / c) : 0;
  if (orders[0].common == 0) return result;  // no match of one token, so none of more
  double log_sum = 0, smoothing = 1;
  for (size_t n = 0; n < 4; ++n) {
    const double total = static_cast<double>(orders[n].hypothesis);
    if (total == 0) return result;  // no line has as many tokens: a precision of 0
    const double matched = static_cast<double>(orders[n].common);
    result.precisions[n] = 100 * (matched > 0 ? matched : 1 / (smoothing *= 2)) / total;
    log_sum += std::log(result.precisions[n]);
  }
  result.score = result.brevity_penalty * std::exp(log_sum / 4);
  return result;
}

double chrf2(const std::vector<std::string>& hypotheses, const std::vector<std::string>& references,
             bool lowercase) {
  check_lines("chrf2", hypotheses, references);
  constexpr size_t max_order = 6;
  std::array<Matches, max_order> orders;
  const auto characters = [&](const std::string& line) {
    return characters_of(lowercase ? lower_case(line) : line);
  };
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const auto hypothesis = characters(hypotheses[i]), reference = characters(references[i]);
    for (size_t n = 1; n <= max_order; ++n) {
      const Matches matches = count_matches(hypothesis, reference, n);
      if (matches.reference > 0) orders[n - 1].hypothesis += matches.hypothesis;
      orders[n - 1].reference += matches.reference;
      orders[n - 1].common += matches.common;
    }
  }
  double precision = 0, recall = 0;
  int counted = 0;
  for (const Matches& order : orders) {
    if (order.hypothesis == 0 || order.reference == 0) continue;
    precision += static_cast<double>(order.common) / static_cast<double>(order.hypothesis);
    recall += static_cast<double>(order.common) / static_cast<double>(order.reference);
    ++counted;
  }
  if (precision + recall == 0) return 0;
  precision /= counted;
  recall /= counted;
  constexpr double beta_squared = 4;
  return 100 * (1 + beta_squared) * precision * recall / (beta_squared * precision + recall);
}

std::string bleu_signature(bool lowercase) {
  return "nrefs:1|case:" + case_of(lowercase) + "|eff:no|tok:13a|smooth:exp";
}

std::string chrf2_signature(bool lowercase) {
  return "nrefs:1|case:" + case_of(lowercase) + "|eff:yes|nc:6|nw:0|space:no";
}

}  // namespace tapeformer
