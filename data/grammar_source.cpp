// Reads the notation of grammars (see grammar.h) and checks all that can be checked beforehand.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"
#include "data/grammar_rules.h"

namespace tapeformer {
namespace {

using Rules = Grammar::Rules;
using Item = Rules::Item;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == text.npos ? std::string_view{} : text.substr(begin, end - begin + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.emplace_back(trimmed(text.substr(at, end - at)));
    at = end + 1;
  }
  return parts;
}

/// Takes a weight off the front; 1 where there is none.
double take_weight(std::string_view& text) {
  int weight = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc{}) return 1;
  text = trimmed(text.substr(end - text.data()));
  return weight;
}

class Reader {
 public:
  explicit Reader(std::string_view source) { read_lines(source); }

  Rules read() {
    check(!rules_.rules.empty(), "grammar: no rules");
    for (const Line& line : lines_) {
      name_variables(line);
      check(!line.text.empty(), "grammar, line ", line.number, ": write {} for nothing");
    }
    for (const Line& line : lines_) compile(line);
    for (Rules::Rule& rule : rules_.rules) weigh(rule);
    resolve(0, Scope(variables_.size()));
    for (size_t i = 0; i < used_.size(); ++i)
      check(used_[i], "grammar: nothing uses rule '", rules_.rules[i].name, "'");
    return std::move(rules_);
  }

 private:
  struct Line {
    int number;
    size_t rule, alternative;
    std::string text;
  };
  using Scope = std::vector<const Rules::Choice*>;  // by variable: what it is drawn from, or null

  static constexpr std::string_view continuation = "      ";  // of the alternative above

  void read_lines(std::string_view source) {
    int number = 0;
    for (size_t at = 0; at < source.size();) {
      const size_t end = std::min(source.find('\n', at), source.size());
      const std::string_view line = source.substr(at, end - at);
      std::string_view text = trimmed(line.substr(0, line.find('#')));
      at = end + 1;
      ++number;
      if (text.empty()) continue;
      if (line[0] != ' ') {
        add_rule(text, number);
        continue;
      }
      check(!rules_.rules.empty(), "grammar, line ", number, ": an alternative before any rule");
      if (line.starts_with(continuation) && !lines_.empty()) {
        std::string& begun = lines_.back().text;
        begun += (begun.ends_with("\\n") ? "" : " ") + std::string(text);
        continue;
      }
      auto& alternatives = rules_.rules.back().alternatives;
      for (const std::string& part : split(text, '/')) {
        std::string_view rest = part;
        alternatives.emplace_back().probability = take_weight(rest);
        lines_.push_back(
            {number, rules_.rules.size() - 1, alternatives.size() - 1, std::string(rest)});
      }
    }
  }

  void add_rule(std::string_view header, int number) {
    Rules::Rule rule;
    const size_t bracket = header.find('(');
    rule.name = trimmed(header.substr(0, bracket));
    rule.form_names = {""};
    if (bracket != header.npos)
      rule.form_names = split(header.substr(bracket + 1, header.find(')') - bracket - 1), ' ');
    check(numbers_.emplace(rule.name, rules_.rules.size()).second, "grammar, line ", number,
          ": a second rule '", rule.name, "'");
    rules_.rules.push_back(std::move(rule));
    used_.push_back(false);
  }

  void name_variables(const Line& line) {
    for (size_t at = 0; (at = line.text.find('{', at)) != std::string::npos;) {
      const std::string_view slot = slot_at(line, at);
      const size_t sign = slot.find(":=");
      if (sign != slot.npos)
        variables_.emplace(trimmed(slot.substr(0, sign)), variables_.size());
      else if (slot.starts_with("new "))
        variables_.emplace(slot.substr(4), variables_.size());
      at += slot.size() + 2;
    }
    check(variables_.size() <= Rules::max_variables, "grammar: more than ", Rules::max_variables,
          " variables");
  }

  /// What stands between the { at `open` and its }.
  static std::string_view slot_at(const Line& line, size_t open) {
    const size_t close = line.text.find('}', open);
    check(close != std::string::npos, "grammar, line ", line.number, ": a { without its }");
    return std::string_view(line.text).substr(open + 1, close - open - 1);
  }

  void compile(const Line& line) {
    Rules::Rule& rule = rules_.rules[line.rule];
    Rules::Alternative& alternative = rule.alternatives[line.alternative];
    alternative.forms = split(line.text, '|');
    check(alternative.forms.size() == rule.form_names.size(), "grammar, line ", line.number, ": ",
          alternative.forms.size(), " forms, but '", rule.name, "' has ", rule.form_names.size());
    for (std::string form : alternative.forms) {
      if (form[0] >= 'a' && form[0] <= 'z') form[0] = static_cast<char>(form[0] - 'a' + 'A');
      alternative.capital_forms.push_back(form);
    }
    for (size_t at = 0; at < line.text.size();) {
      const size_t open = std::min(line.text.find('{', at), line.text.size());
      if (open > at) add_literal(alternative, line.text.substr(at, open - at));
      if (open == line.text.size()) return;
      const std::string_view slot = slot_at(line, open);
      if (!slot.empty()) add_slot(alternative, slot, line);
      at = open + slot.size() + 2;
    }
  }

  static void add_literal(Rules::Alternative& alternative, std::string text) {
    for (size_t at = text.find("\\n"); at != std::string::npos; at = text.find("\\n", at))
      text.replace(at, 2, "\n");
    alternative.items.emplace_back().text = std::move(text);
  }

  void add_slot(Rules::Alternative& alternative, std::string_view slot, const Line& line) const {
    if (const size_t sign = slot.find(":="); sign != slot.npos) {
      add_draw(alternative, trimmed(slot.substr(0, sign)), trimmed(slot.substr(sign + 2)), line);
    } else if (slot.starts_with("new ")) {
      add_draw(alternative, slot.substr(4), slot.substr(4), line);
      add_form(alternative, slot.substr(4), line);
    } else if (slot.starts_with("same ")) {
      add_form(alternative, slot.substr(5), line);
    } else if (numbers_.count(slot) || slot.find(" of ") != slot.npos) {
      Item& item = alternative.items.emplace_back();
      item.kind = Item::expand;
      item.choice = compile_choice(slot, line);
    } else {
      add_form(alternative, slot, line);
    }
  }

  void add_draw(Rules::Alternative& alternative, std::string_view variable, std::string_view rule,
                const Line& line) const {
    Item& item = alternative.items.emplace_back();
    item.kind = Item::draw;
    item.variable = static_cast<int>(variables_.find(variable)->second);
    item.choice = compile_choice(rule, line);
  }

  void add_form(Rules::Alternative& alternative, std::string_view slot, const Line& line) const {
    Item& item = alternative.items.emplace_back();
    item.kind = Item::form_of;
    const size_t dot = slot.find('.');
    std::string name(slot.substr(0, dot));
    item.capital = name[0] >= 'A' && name[0] <= 'Z';
    if (item.capital) name[0] = static_cast<char>(name[0] - 'A' + 'a');
    const auto found = variables_.find(name);
    check(found != variables_.end(), "grammar, line ", line.number, ": no rule or variable '", slot,
          "'");
    item.variable = static_cast<int>(found->second);
    if (dot != slot.npos) item.text = slot.substr(dot + 1);  // the form's name, until resolve()
  }

  Rules::Choice compile_choice(std::string_view name, const Line& line) const {
    Rules::Choice choice;
    if (const auto found = numbers_.find(name); found != numbers_.end()) {
      choice.rule = static_cast<int>(found->second);
      return choice;
    }
    const size_t of = name.find(" of ");
    const auto variable = of == name.npos ? variables_.end() : variables_.find(name.substr(of + 4));
    check(variable != variables_.end(), "grammar, line ", line.number, ": no rule '", name, "'");
    choice.by = static_cast<int>(variable->second);
    const std::string_view family = name.substr(0, of + 4);
    for (const auto& [rule, number] : numbers_)
      if (std::string_view(rule).starts_with(family))
        choice.rule_by_value.emplace(rule.substr(of + 4), static_cast<int>(number));
    return choice;
  }

  static void weigh(Rules::Rule& rule) {
    double sum = 0;
    for (const auto& alternative : rule.alternatives) sum += alternative.probability;
    check(!rule.alternatives.empty(), "grammar: rule '", rule.name, "' has no alternatives");
    for (auto& alternative : rule.alternatives) {
      alternative.probability /= sum;
      alternative.log_probability = std::log(alternative.probability);
      rule.entropy -= alternative.probability * alternative.log_probability;
    }
  }

  /// Follows the rules as a derivation does, with what each variable in scope is drawn from:
  /// finds the forms and complains of variables used before they are drawn.
  void resolve(int number, Scope scope) {
    Rules::Rule& rule = rules_.rules[number];
    used_[number] = true;
    check(std::find(path_.begin(), path_.end(), number) == path_.end(), "grammar: rule '",
          rule.name, "' uses itself");
    path_.push_back(number);
    for (Rules::Alternative& alternative : rule.alternatives) {
      Scope inner = scope;
      for (Item& item : alternative.items) {
        if (item.kind == Item::form_of) resolve_form(item, inner, rule.name);
        if (item.kind == Item::expand)
          for (const int next : rules_of(item.choice, inner, rule.name)) resolve(next, inner);
        if (item.kind == Item::draw) {
          for (const int next : rules_of(item.choice, inner, rule.name)) draw_from(next);
          inner[item.variable] = &item.choice;
        }
      }
    }
    path_.pop_back();
  }

  void draw_from(int number) {
    used_[number] = true;
    for (const auto& alternative : rules_.rules[number].alternatives)
      for (const Item& item : alternative.items)
        check(item.kind == Item::literal, "grammar: '", rules_.rules[number].name,
              "' is drawn from, so its alternatives must be plain text");
  }

  /// The rules that a choice may take. What chooses must itself be drawn from one known rule: the
  /// expectation counts on it.
  std::vector<int> rules_of(const Rules::Choice& choice, const Scope& scope,
                            const std::string& user) const {
    if (choice.by < 0) return {choice.rule};
    const Rules::Choice* source = scope[choice.by];
    check(source && source->by < 0, "grammar: rule '", user,
          "' chooses by a variable that is not drawn, or not from one rule");
    std::vector<int> result;
    for (const auto& value : rules_.rules[source->rule].alternatives) {
      const auto found = choice.rule_by_value.find(value.forms[0]);
      check(found != choice.rule_by_value.end(), "grammar: rule '", user,
            "' needs a rule for the value '", value.forms[0], "'");
      result.push_back(found->second);
    }
    return result;
  }

  void resolve_form(Item& item, const Scope& scope, const std::string& user) const {
    const Rules::Choice* source = scope[item.variable];
    check(source, "grammar: rule '", user, "' uses a variable before it is drawn");
    for (const int number : rules_of(*source, scope, user)) {
      const auto& names = rules_.rules[number].form_names;
      const auto found = std::find(names.begin(), names.end(), item.text);
      check(found != names.end() || item.text.empty(), "grammar: rule '", user,
            "' wants the form '", item.text, "' that '", rules_.rules[number].name, "' has not");
      const int form = item.text.empty() ? 0 : static_cast<int>(found - names.begin());
      check(item.form < 0 || item.form == form, "grammar: rule '", user, "' finds the form '",
            item.text, "' in different places");
      item.form = form;
    }
  }

  Rules rules_;
  std::vector<Line> lines_;
  std::map<std::string, size_t, std::less<>> numbers_;  // of rules, by name
  std::map<std::string, size_t, std::less<>> variables_;
  std::vector<bool> used_;
  std::vector<int> path_;
};

}  // namespace

std::unique_ptr<const Rules> read_grammar(std::string_view source) {
  return std::make_unique<const Rules>(Reader(source).read());
}

}  // namespace tapeformer
