#include "data/stories.h"

#include "core/check.h"
#include "core/random.h"
#include "data/grammar.h"
#include "data/stories_grammar.h"

namespace tapeformer {
namespace {

const Grammar& grammar() {
  static const Grammar grammar(std::string(stories_plots) + stories_words);
  return grammar;
}

const Grammar::Expectation& expectation() {
  static const Grammar::Expectation expectation = grammar().expectation();
  return expectation;
}

}  // namespace

std::string generate_stories(uint64_t seed, size_t bytes) {
  Generator random(RandomKey{seed, Purpose::stories});
  std::string text;
  text.reserve(bytes + 2000);
  while (text.size() < bytes) grammar().write(random, text);
  return text;
}

StoryParse parse_story(std::string_view story) {
  const Grammar::Parse parse = grammar().parse(story);
  return {parse.log_probability, parse.derivations};
}

double story_log_probability(std::string_view story) {
  const Grammar::Parse parse = grammar().parse(story);
  check(parse.derivations > 0, "story_log_probability: the grammar does not write this text: \"",
        story.substr(0, 60), story.size() > 60 ? "...\"" : "\"");
  return parse.log_probability;
}

double story_entropy() { return expectation().entropy; }
double story_mean_length() { return expectation().length; }
double stories_entropy_per_character() { return story_entropy() / story_mean_length(); }

}  // namespace tapeformer
