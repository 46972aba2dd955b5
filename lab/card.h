// A card: one claim, what was done to test it, what came out, and the verdict.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"

namespace tapeformer::lab {

/// On the statement as people say it.
enum class Verdict { holds, does_not_hold, reversed, not_decidable };
const char* name_of(Verdict verdict);  // "holds", "not decidable at this scale"

/// A measured quantity by name: one number, or one per seed or setting.
struct Measured {
  std::string name{};
  std::vector<double> values;
};

/// What a rule makes of the numbers.
struct Judgement {
  Verdict verdict = Verdict::not_decidable;
  std::vector<Measured> measured;
  std::string remark{};  ///< what else they say, in whole sentences
};

/// The rule for "a is larger than b by more than `margin`", from one difference a - b per seed:
/// holds when every one is above margin, reversed when every one is below -margin, does not hold
/// when all lie between, and otherwise (or without any, or with one that is no number) not
/// decidable.
Verdict judge_differences(const std::vector<double>& differences, double margin);
/// f(a, b) of two columns of numbers, seed by seed. Throws where one is longer than the other.
template <class F>
std::vector<double> seed_by_seed(const std::vector<double>& a, const std::vector<double>& b,
                                 const F& f) {
  check(a.size() == b.size(), "card: ", a.size(), " numbers against ", b.size(),
        "; runs are missing");
  std::vector<double> result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(f(a[i], b[i]));
  return result;
}
/// a - b, and the smaller of the two, seed by seed.
std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b);
std::vector<double> smaller(const std::vector<double>& a, const std::vector<double>& b);

/// Mean and standard deviation (of the sample, by n - 1; 0 for a single value).
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread(const std::vector<double>& values);
/// Mean, deviation and count: "1.234 +- 0.05 (3)"; the values themselves, "20, inf, 40", where not
/// all are finite, for then there is no mean.
std::string to_text(const std::vector<double>& values);

struct Card {
  std::string name{};
  std::string claim{};       ///< as people say it
  std::string source{};      ///< where it comes from
  std::string literature{};  ///< what the literature says about it
  std::string method{};      ///< what was done
  std::string rule{};        ///< how the verdict follows from the numbers
  std::string remark{};      ///< what else the numbers say; where the literature differs from them
  std::string data{};        ///< the text it was measured on; whether in quick sizes
  /// "batchnorm stands for powernorm in ...": what the claim names was another norm here, of which
  /// the literature says nothing. Empty where it was what it is called.
  std::string replaced{};
  Judgement judgement{};
  bool measured_here = true;  ///< false: no experiment can decide it; the literature alone speaks
  int seeds = 0;
  double seconds = 0;
};

/// For a terminal, in lines of at most 80 characters.
std::string to_text(const Card& card);
/// With the keys name, claim, source, literature, method, rule, remark, data, verdict, measured (an
/// object of numbers or lists), seeds, seconds; and replaced, where there is one. Numbers that
/// are not finite are null.
std::string to_json(const Card& card);
Card card_from_json(std::string_view text);
/// The card in a JSON file. Errors name the file.
Card read_card(const std::filesystem::path& path);

}  // namespace tapeformer::lab
