// The algorithms on a grammar: writing, parsing, expectation. grammar_source.cpp reads the
// notation.
#include "data/grammar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "data/grammar_rules.h"

namespace tapeformer {
namespace {

using Rules = Grammar::Rules;
using Item = Rules::Item;
using Alternative = Rules::Alternative;
using Values = std::array<const Alternative*, Rules::max_variables>;  // of variables in scope

const std::string& text_of(const Item& item, const Alternative& value) {
  return item.capital ? value.capital_forms[item.form] : value.forms[item.form];
}

class Writer {
 public:
  Writer(const Rules& rules, Generator& random, std::string& out)
      : rules_(rules), random_(random), out_(out) {}

  void write(const Rules::Rule& rule, Values values) {
    for (const Item& item : pick(rule).items) switch (item.kind) {
        case Item::literal:
          out_ += item.text;
          break;
        case Item::form_of:
          out_ += text_of(item, *values[item.variable]);
          break;
        case Item::expand:
          write(rules_.chosen(item.choice, values), values);
          break;
        case Item::draw:
          values[item.variable] = &pick(rules_.chosen(item.choice, values));
          break;
      }
  }

 private:
  const Alternative& pick(const Rules::Rule& rule) {
    double left = random_.uniform();
    for (const Alternative& alternative : rule.alternatives)
      if ((left -= alternative.probability) < 0) return alternative;
    return rule.alternatives.back();
  }

  const Rules& rules_;
  Generator& random_;
  std::string& out_;
};

/// The beginnings of the text that a part of the grammar can write: where they end, with what
/// probability, in how many ways.
struct End {
  size_t at = 0;
  double log_probability = 0, derivations = 1;
};
using Ends = std::vector<End>;

void merge(Ends& ends, const End& end) {
  for (End& other : ends)
    if (other.at == end.at) {
      const double high = std::max(other.log_probability, end.log_probability);
      const double low = std::min(other.log_probability, end.log_probability);
      other.log_probability = high + std::log1p(std::exp(low - high));
      other.derivations += end.derivations;
      return;
    }
  ends.push_back(end);
}

/// Goes from the left to the right. Every choice is followed as far as it agrees with the text;
/// choices that come to the same place are merged, so the work does not grow with their number.
class Parser {
 public:
  Parser(const Rules& rules, std::string_view text) : rules_(rules), text_(text) {}

  Ends ends(const Rules::Rule& rule, const Values& values, size_t at) const {
    Ends ends;
    for (const Alternative& alternative : rule.alternatives)
      follow(alternative, 0, values, {at, alternative.log_probability, 1}, ends);
    return ends;
  }

 private:
  /// The rest of an alternative, from item i on, after `end`.
  void follow(const Alternative& alternative, size_t i, const Values& values, End end,
              Ends& ends) const {
    for (; i < alternative.items.size(); ++i) {
      const Item& item = alternative.items[i];
      if (item.kind == Item::expand) {
        for (const End& part : this->ends(rules_.chosen(item.choice, values), values, end.at))
          follow(alternative, i + 1, values,
                 {part.at, end.log_probability + part.log_probability,
                  end.derivations * part.derivations},
                 ends);
        return;
      }
      if (item.kind == Item::draw) {
        Values drawn = values;
        for (const Alternative& value : rules_.chosen(item.choice, values).alternatives) {
          drawn[item.variable] = &value;
          follow(alternative, i + 1, drawn,
                 {end.at, end.log_probability + value.log_probability, end.derivations}, ends);
        }
        return;
      }
      const std::string& text =
          item.kind == Item::literal ? item.text : text_of(item, *values[item.variable]);
      if (text_.compare(end.at, text.size(), text) != 0) return;
      end.at += text.size();
    }
    merge(ends, end);
  }

  const Rules& rules_;
  std::string_view text_;
};

/// Expectation is linear, so every item adds its own, and needs to know of the variables only how
/// each by itself is distributed: drawn from a rule; drawn from a rule that another one chooses;
/// or, in a rule that it has chosen itself, known.
class Expect {
 public:
  struct Belief {
    const Rules::Choice* drawn_from = nullptr;
    const Alternative* known = nullptr;
  };
  using Beliefs = std::array<Belief, Rules::max_variables>;

  explicit Expect(const Rules& rules) : rules_(rules) {}

  Grammar::Expectation of(const Rules::Rule& rule, const Beliefs& beliefs) const {
    Grammar::Expectation sum{rule.entropy, 0};
    for (const Alternative& alternative : rule.alternatives)
      add(sum, alternative.probability, of(alternative, beliefs));
    return sum;
  }

 private:
  static void add(Grammar::Expectation& sum, double weight, const Grammar::Expectation& part) {
    sum.entropy += weight * part.entropy;
    sum.length += weight * part.length;
  }

  Grammar::Expectation of(const Alternative& alternative, Beliefs beliefs) const {
    Grammar::Expectation sum;
    for (const Item& item : alternative.items) switch (item.kind) {
        case Item::literal:
          sum.length += static_cast<double>(item.text.size());
          break;
        case Item::form_of:
          for (const auto& [value, probability] : values(item.variable, beliefs))
            sum.length += probability * static_cast<double>(value->forms[item.form].size());
          break;
        case Item::expand:
          for (const Branch& branch : branches(item.choice, beliefs)) {
            Beliefs given = beliefs;
            if (item.choice.by >= 0) given[item.choice.by].known = branch.because;
            add(sum, branch.probability, of(*branch.rule, given));
          }
          break;
        case Item::draw:
          for (const Branch& branch : branches(item.choice, beliefs))
            sum.entropy += branch.probability * branch.rule->entropy;
          beliefs[item.variable] = {&item.choice, nullptr};
          break;
      }
    return sum;
  }

  /// The rules that a choice may take, and the value that makes it take this one.
  struct Branch {
    const Rules::Rule* rule;
    double probability;
    const Alternative* because;
  };
  std::vector<Branch> branches(const Rules::Choice& choice, const Beliefs& beliefs) const {
    if (choice.by < 0) return {{&rules_.rules[choice.rule], 1, nullptr}};
    std::vector<Branch> result;
    for (const auto& [value, probability] : values(choice.by, beliefs))
      result.push_back(
          {&rules_.rules[choice.rule_by_value.at(value->forms[0])], probability, value});
    return result;
  }

  using Distribution = std::vector<std::pair<const Alternative*, double>>;
  Distribution values(int variable, const Beliefs& beliefs) const {
    if (beliefs[variable].known) return {{beliefs[variable].known, 1}};
    Distribution result;
    for (const Branch& branch : branches(*beliefs[variable].drawn_from, beliefs))
      for (const Alternative& value : branch.rule->alternatives)
        result.emplace_back(&value, branch.probability * value.probability);
    return result;
  }

  const Rules& rules_;
};

}  // namespace

Grammar::Grammar(std::string_view source) : rules_(read_grammar(source)) {}
Grammar::~Grammar() = default;

void Grammar::write(Generator& random, std::string& out) const {
  Writer(*rules_, random, out).write(rules_->rules[0], {});
}

Grammar::Parse Grammar::parse(std::string_view text) const {
  for (const End& end : Parser(*rules_, text).ends(rules_->rules[0], {}, 0))
    if (end.at == text.size()) return {end.log_probability, end.derivations};
  return {-std::numeric_limits<double>::infinity(), 0};
}

Grammar::Expectation Grammar::expectation() const {
  return Expect(*rules_).of(rules_->rules[0], {});
}

}  // namespace tapeformer
