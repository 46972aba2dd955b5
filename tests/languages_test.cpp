// The embedded language pair: grammar by example, and that every source has one translation.
#include "data/languages.h"

#include <map>

#include "tests/catch.h"

using namespace tapeformer;

TEST_CASE("the_target_language_follows_its_grammar") {
  const auto right = [](const std::string& source, const std::string& target) {
    return pair_derivations({source, target});
  };
  // Verb last, with tense (al: past) and number (a, im) of the subject; the object marked by k.
  CHECK(right("the dog saw a tree.", "lo karoa un arbotak mirala.") == 0);
  CHECK(right("the dog saw a tree.", "lo kara un arbotak mirala.") == 1);
  CHECK(right("two dogs see many trees.", "duk karim plu arbotimk miresim.") == 1);
  // Adjectives follow, with the vowel of the noun's class and its number.
  CHECK(right("the small cat will buy three red books.",
              "lo misha titia tez librunimk rubeluim kompura.") == 1);
  CHECK(right("the small cat will buy three red books.",
              "lo misha tita tez librunimk rubeluim kompura.") == 0);
  // The place comes first, and its preposition behind it.
  CHECK(right("many men do not take the cake behind the tower.",
              "lo turmila tor plu hombim lo plakorak prenesneim.") == 1);
  CHECK(right("does a king forget the key?", "ka un rola lo klavunak oblitesa?") == 1);
}

TEST_CASE("every_source_has_one_translation") {
  std::map<std::string, std::string> translations;
  const auto pairs = generate_pairs(1, 20'000);
  for (const SentencePair& pair : pairs) {
    const auto [entry, fresh] = translations.emplace(pair.source, pair.target);
    REQUIRE(entry->second == pair.target);
  }
  CHECK(translations.size() > 19'000);  // hardly a sentence comes twice
  for (size_t i = 0; i < 300; ++i) {
    CAPTURE(pairs[i].source, pairs[i].target);
    CHECK(pair_derivations(pairs[i]) == 1);
  }
}

TEST_CASE("pairs_depend_on_the_seed_alone") {
  const auto pairs = generate_pairs(7, 50), more = generate_pairs(7, 80),
             others = generate_pairs(8, 50);
  for (size_t i = 0; i < 50; ++i) CHECK(pairs[i].target == more[i].target);
  CHECK(pairs[0].source + pairs[1].source != others[0].source + others[1].source);
}
