// BLEU and chrF2 against sacreBLEU's numbers (vectors/make_scores.py).
#include "train/translation_scores.h"

#include "tests/catch.h"
#include "tests/vectors/vectors.h"

using namespace tapeformer;

TEST_CASE("bleu_and_chrf2_equal_sacrebleus") {
  const nlohmann::json corpora = vectors::read_json("scores.json").at("corpora");
  REQUIRE(corpora.size() >= 30);
  for (const auto& held : corpora) {
    const bool lowercase = held.at("lowercase");
    INFO(held.at("name").get<std::string>() << (lowercase ? ", lower case" : ""));
    const auto hypotheses = held.at("hypotheses").get<std::vector<std::string>>();
    const auto references = held.at("references").get<std::vector<std::string>>();
    const Bleu score = bleu(hypotheses, references, lowercase);
    CHECK(std::abs(score.score - held.at("bleu").get<double>()) < 1e-9);
    CHECK(std::abs(score.brevity_penalty - held.at("brevity_penalty").get<double>()) < 1e-12);
    for (size_t n = 0; n < 4; ++n)
      CHECK(std::abs(score.precisions[n] - held.at("precisions").at(n).get<double>()) < 1e-9);
    CHECK(std::abs(chrf2(hypotheses, references, lowercase) - held.at("chrf2").get<double>()) <
          1e-9);
    CHECK(bleu_signature(lowercase) == held.at("bleu_signature"));
    CHECK(chrf2_signature(lowercase) == held.at("chrf2_signature"));
  }
}

TEST_CASE("lines_are_cut_as_13a_cuts_them") {
  const auto json = vectors::read_json("scores.json");
  for (const auto& held : json.at("lines")) {
    CAPTURE(held.at("line").get<std::string>());
    CHECK(tokenize_13a(held.at("line").get<std::string>()) == held.at("tokens"));
  }
}

TEST_CASE("scores_need_a_reference_for_each_line") {
  CHECK_THROWS_WITH(bleu({"a", "b"}, {"a"}), ContainsSubstring("2 hypotheses and 1 references"));
  CHECK_THROWS_WITH(chrf2({}, {"a"}), ContainsSubstring("0 hypotheses and 1 references"));
}
