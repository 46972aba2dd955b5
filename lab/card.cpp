#include "lab/card.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/json_text.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer::lab {

namespace {
constexpr const char* verdict_names[] = {"holds", "does not hold", "reversed",
                                         "not decidable at this scale"};
}

const char* name_of(Verdict verdict) { return verdict_names[static_cast<int>(verdict)]; }

Verdict judge_differences(const std::vector<double>& differences, double margin) {
  const auto all = [&](auto&& condition) {
    return !differences.empty() && std::ranges::all_of(differences, condition);
  };
  if (all([=](double d) { return d > margin; })) return Verdict::holds;
  if (all([=](double d) { return d < -margin; })) return Verdict::reversed;
  if (all([=](double d) { return std::abs(d) <= margin; })) return Verdict::does_not_hold;
  return Verdict::not_decidable;
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  return seed_by_seed(a, b, [](double x, double y) { return x - y; });
}

std::vector<double> smaller(const std::vector<double>& a, const std::vector<double>& b) {
  return seed_by_seed(a, b, [](double x, double y) { return std::min(x, y); });
}

Spread spread(const std::vector<double>& values) {
  Spread result;
  for (const double value : values) result.mean += value / values.size();
  if (values.size() < 2) return result;
  double sum = 0;
  for (const double value : values) sum += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(sum / (values.size() - 1));
  return result;
}

std::string to_text(const std::vector<double>& values) {
  if (values.empty()) return "-";
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); })) {
    std::string list;
    for (const double value : values)
      list += (list.empty() ? "" : ", ") + (std::isfinite(value) ? compact(value) : "not finite");
    return list;
  }
  const Spread s = spread(values);
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(4);
  out << s.mean;
  if (values.size() == 1) return out.str();
  out.precision(2);
  out << " +- " << s.deviation << " (" << values.size() << ")";
  return out.str();
}

namespace {

// Breaks a text into lines of at most `width` characters, each after `indent` spaces.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::istringstream words(text);
  std::string result, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      result += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return result + line + "\n";
}

}  // namespace

std::string to_text(const Card& card) {
  constexpr size_t indent = 13, width = 80;
  std::string result;
  const auto add = [&](std::string label, const std::string& text) {
    if (text.empty()) return;
    label.resize(indent, ' ');
    result += label + wrapped(text, indent, width);
  };
  result += "== " + card.name + " ==\n";
  add("Claim", card.claim);
  add("Source", card.source);
  add("Literature", card.literature);
  add("Method", card.method);
  add("Replaced", card.replaced);
  for (size_t i = 0; i < card.judgement.measured.size(); ++i) {
    const Measured& measured = card.judgement.measured[i];
    add(i == 0 ? "Measured" : "", measured.name + ": " + to_text(measured.values));
  }
  add("Rule", card.rule);
  add("VERDICT", card.measured_here ? name_of(card.judgement.verdict) : "not tested here");
  add("Remark", card.remark);
  if (card.measured_here)
    add("Run", std::to_string(card.seeds) + (card.seeds == 1 ? " seed, " : " seeds, ") +
                   fixed(card.seconds, 0) + " s, " + card.data);
  return result;
}

std::string to_json(const Card& card) {
  nlohmann::ordered_json measured = nlohmann::ordered_json::object();
  for (const Measured& m : card.judgement.measured) {
    if (m.values.size() == 1)
      measured[m.name] = m.values[0];
    else
      measured[m.name] = m.values;
  }
  nlohmann::ordered_json json = {{"name", card.name},
                                 {"claim", card.claim},
                                 {"source", card.source},
                                 {"literature", card.literature},
                                 {"method", card.method},
                                 {"rule", card.rule},
                                 {"remark", card.remark},
                                 {"data", card.data},
                                 {"verdict", name_of(card.judgement.verdict)},
                                 {"measured_here", card.measured_here},
                                 {"measured", measured},
                                 {"seeds", card.seeds},
                                 {"seconds", card.seconds}};
  if (!card.replaced.empty()) json["replaced"] = card.replaced;
  // The name of a text is the name of a file, which may be no UTF-8.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Card card_from_json(std::string_view text) {
  check(is_modest_json(text), "card: too long or too deeply nested to be one");
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  check(json.is_object(), "card: not a JSON object");
  try {
    Card card;
    const auto read = [&](const char* key, auto& value) { json.at(key).get_to(value); };
    read("name", card.name);
    read("claim", card.claim);
    read("source", card.source);
    read("literature", card.literature);
    read("method", card.method);
    read("rule", card.rule);
    read("remark", card.remark);
    read("data", card.data);
    card.replaced = json.value("replaced", "");
    read("measured_here", card.measured_here);
    read("seeds", card.seeds);
    read("seconds", card.seconds);
    const auto number = [](const nlohmann::ordered_json& value) {
      return value.is_null() ? std::nan("") : value.get<double>();
    };
    for (const auto& [name, value] : json.at("measured").items()) {
      Measured measured{name, {}};
      if (value.is_array())
        for (const auto& element : value) measured.values.push_back(number(element));
      else
        measured.values.push_back(number(value));
      card.judgement.measured.push_back(std::move(measured));
    }
    const auto verdict = json.at("verdict").get<std::string>();
    const auto found = std::ranges::find(verdict_names, verdict);
    check(found != std::end(verdict_names), "card: there is no verdict '", verdict, "'");
    card.judgement.verdict = static_cast<Verdict>(found - std::begin(verdict_names));
    return card;
  } catch (const nlohmann::json::exception& error) {
    fail("card: ", error.what());
  }
}

Card read_card(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return card_from_json(text);
  } catch (const Error& error) {
    fail(path.string(), " is no card: ", error.what());
  }
}

}  // namespace tapeformer::lab
