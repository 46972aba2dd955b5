// The grammar, and what is promised of the embedded stories: one derivation each, exact entropy.
#include "data/stories.h"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "core/check.h"
#include "data/grammar.h"
#include "tests/catch.h"

using namespace tapeformer;

namespace {

// Small enough to write down all its texts, with all that the notation has.
const char* const small_grammar = R"(
scene                                  # the start
  3 {who := child}{who} went to the {place := where}{place}. {act}\n
  1 {place := where}{toy := toy of place}A {toy} {place.at}, a {toy}!{end}
child (name he)
  2 Mia | she
  Tom | he
where (name at)
  sea | at sea / 3 zoo | in the zoo
act
  {Who.he} saw a {sight of place}{end} / {Who.he} found a {new hat}, a {same
      hat}
hat
  cap / 4 bonnet
sight of sea
  crab / 2 whale
sight of zoo
  bear that {who.he} fed / lion / 5 {new hat} on an ape: a {same hat}
toy of sea
  boat / ball
toy of zoo
  balloon
end
  ! / 2 {}
)";

std::vector<std::string> split_stories(const std::string& text) {
  std::vector<std::string> stories;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at) + 2;
    stories.push_back(text.substr(at, end - at));
    at = end;
  }
  return stories;
}

std::string error_of(const char* source) {
  try {
    const Grammar grammar(source);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("grammar_probabilities_entropy_and_length_equal_the_sums_over_all_texts") {
  const Grammar grammar(small_grammar);
  Generator random(RandomKey{1, Purpose::stories});
  std::map<std::string, int> counts;
  const int samples = 20000;
  for (int i = 0; i < samples; ++i) {
    std::string text;
    grammar.write(random, text);
    ++counts[text];
  }
  double total = 0, entropy = 0, length = 0, chi_square = 0;
  for (const auto& [text, count] : counts) {
    const Grammar::Parse parse = grammar.parse(text);
    CHECK(parse.derivations == 1);
    const double p = std::exp(parse.log_probability);
    total += p;
    entropy -= p * parse.log_probability;
    length += p * static_cast<double>(text.size());
    chi_square += (count - samples * p) * (count - samples * p) / (samples * p);
  }
  // Scene 1: 2 children x (sea: 2 sights x 2 ends; zoo: 2 + 2 sights x 2 ends; 2 places x 2 hats).
  // Scene 2: 3 toys x 2 ends.
  CHECK(counts.size() == 2 * (4 + 8 + 4) + 6);
  CHECK(total == Approx(1).epsilon(1e-12));
  CHECK(grammar.expectation().entropy == Approx(entropy).epsilon(1e-12));
  CHECK(grammar.expectation().length == Approx(length).epsilon(1e-12));
  CHECK(chi_square < 69.4);  // 37 degrees of freedom, p = 0.001
}

TEST_CASE("grammar_gives_a_text_the_probability_that_its_choices_have") {
  const Grammar grammar(small_grammar);
  const auto probability = [&](const char* text) {
    return std::exp(grammar.parse(text).log_probability);
  };
  CHECK(probability("Mia went to the zoo. She saw a bear that she fed!\n") ==
        Approx(3. / 4 * 2 / 3 * 3 / 4 * 1 / 2 * 1 / 7 * 1 / 3));
  CHECK(probability("Tom went to the sea. He found a bonnet, a bonnet\n") ==
        Approx(3. / 4 * 1 / 3 * 1 / 4 * 1 / 2 * 4 / 5));
  CHECK(probability("A boat at sea, a boat!") == Approx(1. / 4 * 1 / 4 * 1 / 2 * 2 / 3));
  CHECK(probability("Tom went to the sea. She saw a crab\n") == 0);  // another pronoun
  CHECK(probability("Tom went to the sea. He saw a lion\n") == 0);   // of another place
  CHECK(probability("Tom went to the sea. He found a cap, a bonnet\n") == 0);
  CHECK(probability("A boat at sea, a boat!\n") == 0);  // more than the text
  CHECK(probability("A boat at sea, a ") == 0);         // less
  CHECK(probability("") == 0);
}

TEST_CASE("grammar_counts_the_derivations_of_an_ambiguous_text") {
  const Grammar grammar("start\n  {x}{x}\nx\n  a / aa / 2 {}");
  // "aa": a a, aa nothing, nothing aa.
  const Grammar::Parse parse = grammar.parse("aa");
  CHECK(parse.derivations == 3);
  CHECK(std::exp(parse.log_probability) == Approx(1. / 16 + 2. / 16 + 2. / 16));
  CHECK(grammar.parse("aaaaa").derivations == 0);
}

TEST_CASE("grammar_errors_say_what_is_wrong") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "no rules"},
      {"  a\n", "line 1: an alternative before any rule"},
      {"s\n  a\ns\n  b", "line 3: a second rule 's'"},
      {"s\n  {x", "line 2: a { without its }"},
      {"s\n  {nobody}", "line 2: no rule or variable 'nobody'"},
      {"s\n  {v := nobody}", "line 2: no rule 'nobody'"},
      {"s\n  {x of y}", "line 2: no rule 'x of y'"},
      {"s\n  2", "line 2: write {} for nothing"},
      {"s\n  {x}\nx", "rule 'x' has no alternatives"},
      {"s\n  {x}\nx\n  {s} / a", "rule 's' uses itself"},
      {"s\n  a\nx\n  b", "nothing uses rule 'x'"},
      {"s\n  {x}{v := w}{v}\nx\n  {v}\nw\n  a", "rule 'x' uses a variable before it is drawn"},
      {"s\n  {v := w}{v.he}\nw (name he)\n  a", "line 4: 1 forms, but 'w' has 2"},
      {"s\n  {v := w}{v.she}\nw (name he)\n  a | b", "wants the form 'she' that 'w' has not"},
      {"s\n  {v := w}{x} / {v := u}{x}\nx\n  {v.b}\nw (a b)\n  1 c | d\nu (b a)\n  e | f",
       "rule 'x' finds the form 'b' in different places"},
      {"s\n  {v := w}{v}{x of v}\nw\n  a / b\nx of a\n  c", "needs a rule for the value 'b'"},
      {"s\n  {v := w}{v}\nw\n  a{x}\nx\n  b", "'w' is drawn from, so its alternatives must be"},
  };
  for (const auto& [source, message] : cases)
    CHECK_THAT(error_of(source), ContainsSubstring("grammar") && ContainsSubstring(message));
}

TEST_CASE("stories_are_a_function_of_the_seed") {
  const std::string text = generate_stories(5, 20000);
  CHECK(text == generate_stories(5, 20000));
  CHECK(text != generate_stories(6, 20000));
  CHECK(generate_stories(5, 40000).substr(0, text.size()) == text);
  CHECK(text.size() >= 20000);
  CHECK(text.size() < 22000);
  CHECK(text.ends_with("\n\n"));
  CHECK(generate_stories(5, 0).empty());
}

TEST_CASE("stories_use_few_characters_and_differ") {
  const std::string text = generate_stories(1, 300000);
  const std::set<char> characters(text.begin(), text.end());
  CHECK(characters.size() <= 60);
  for (const char c : characters) CHECK((c == '\n' || (c >= ' ' && c <= 'z')));
  const auto stories = split_stories(text);
  CHECK(std::set<std::string>(stories.begin(), stories.end()).size() == stories.size());
}

TEST_CASE("stories_have_one_derivation_each_and_the_entropy_of_the_grammar") {
  const auto stories = split_stories(generate_stories(2, 1500000));
  const double n = static_cast<double>(stories.size());
  const double rate = stories_entropy_per_character();
  double lengths = 0, surprise = 0, surprise_squares = 0, excess = 0, excess_squares = 0;
  int64_t ambiguous = 0;
  for (const std::string& story : stories) {
    const StoryParse parse = parse_story(story);
    if (parse.derivations != 1) {
      if (++ambiguous < 5) UNSCOPED_INFO(parse.derivations << " derivations: " << story);
      continue;
    }
    const double length = static_cast<double>(story.size());
    lengths += length;
    surprise -= parse.log_probability;
    surprise_squares += parse.log_probability * parse.log_probability;
    // What the story's surprise has beyond the rate: of mean 0.
    const double more = -parse.log_probability - rate * length;
    excess += more;
    excess_squares += more * more;
  }
  CHECK(ambiguous == 0);
  REQUIRE(n > 2000);
  const double mean = surprise / n, deviation = std::sqrt(surprise_squares / n - mean * mean);
  CHECK(std::abs(mean - story_entropy()) < 4 * deviation / std::sqrt(n));
  CHECK(std::abs(excess / n) < 4 * std::sqrt(excess_squares / n / n));
  CHECK(lengths / n == Approx(story_mean_length()).epsilon(0.01));
  CHECK(rate == story_entropy() / story_mean_length());
}

TEST_CASE("stories_are_varied_but_far_from_noise") {
  CHECK(stories_entropy_per_character() > 0.15);
  CHECK(stories_entropy_per_character() < 0.7);
  CHECK(story_entropy() > 90);  // e^90 stories
}

TEST_CASE("only_stories_have_a_probability") {
  const auto stories = split_stories(generate_stories(3, 1000));
  REQUIRE(stories.size() >= 2);
  CHECK(story_log_probability(stories[0]) < -20);
  CHECK(parse_story(stories[0] + stories[1]).derivations == 0);
  CHECK(parse_story(stories[0].substr(0, stories[0].size() - 1)).derivations == 0);
  CHECK_THROWS_WITH(story_log_probability("Once upon a time there was nothing."),
                    ContainsSubstring("story_log_probability: the grammar does not write this "
                                      "text: \"Once upon a time there was nothing.\""));
}
