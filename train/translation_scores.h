// How good translations are beside a reference: BLEU and chrF2 of a corpus, the same numbers as
// sacreBLEU's (Post 2018).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapeformer {

struct Bleu {
  double score = 0;                    ///< 0 ... 100
  std::array<double, 4> precisions{};  ///< of 1- to 4-grams, in percent, smoothed
  double brevity_penalty = 1;
  int64_t hypothesis_tokens = 0, reference_tokens = 0;
};

/// BLEU of a corpus (Papineni et al. 2002) over tokens of tokenize_13a, with exponential smoothing
/// (Chen & Cherry 2014, method 3): the k-th order without a match counts 2^-k of one. Line i of the
/// hypotheses belongs to line i of the references. Throws when their numbers differ.
Bleu bleu(const std::vector<std::string>& hypotheses, const std::vector<std::string>& references,
          bool lowercase = false);

/// chrF2 of a corpus, 0 ... 100 (Popovic 2015): precision and recall of 1- to 6-grams of
/// characters, spaces left out, each averaged over the orders, recall weighing twice. Throws as
/// bleu().
double chrf2(const std::vector<std::string>& hypotheses, const std::vector<std::string>& references,
             bool lowercase = false);

/// Tokens of a line with one space between them, by the rules of NIST's mteval-v13a: punctuation
/// stands apart, but not a point or comma between digits.
std::string tokenize_13a(std::string_view line);

/// What makes scores comparable: "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp" for BLEU.
std::string bleu_signature(bool lowercase);
std::string chrf2_signature(bool lowercase);

}  // namespace tapeformer
