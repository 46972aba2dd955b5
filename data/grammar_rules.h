// A grammar as it is kept: what grammar_source.cpp makes of the notation, for grammar.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/grammar.h"

namespace tapeformer {

struct Grammar::Rules {
  static constexpr int max_variables = 24;

  /// One rule; or, where `by` is a variable, the rule for its value.
  struct Choice {
    int rule = -1;
    int by = -1;
    std::map<std::string, int> rule_by_value;
  };
  struct Item {
    enum Kind { literal, form_of, expand, draw } kind = literal;
    std::string text;      // of a literal
    int variable = -1;     // written or drawn
    int form = -1;         // of the variable's value
    bool capital = false;  // its first letter
    Choice choice;         // to expand or draw from
  };
  struct Alternative {
    double probability = 1, log_probability = 0;
    std::vector<std::string> forms, capital_forms;  // as the value of a variable
    std::vector<Item> items;                        // as a part of a text
  };
  struct Rule {
    std::string name;
    std::vector<std::string> form_names;
    std::vector<Alternative> alternatives;
    double entropy = 0;  // of the choice of an alternative
  };
  std::vector<Rule> rules;  // the start is the first

  /// `values[v]` is what variable v was drawn as.
  template <class Values>
  const Rule& chosen(const Choice& choice, const Values& values) const {
    return rules[choice.by < 0 ? choice.rule
                               : choice.rule_by_value.at(values[choice.by]->forms[0])];
  }
};

std::unique_ptr<const Grammar::Rules> read_grammar(std::string_view source);

}  // namespace tapeformer
