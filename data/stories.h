// Small English stories from a probabilistic grammar of our own: text to train on without a
// download, and one whose entropy is known. Every story has exactly one derivation, so the
// probability of a text is computable, and so is the loss that a perfect model has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapeformer {

/// Whole stories, each ending with an empty line, until there are `bytes` bytes or a little more.
/// A function of the seed alone; a longer text begins with the shorter one.
std::string generate_stories(uint64_t seed, size_t bytes);

struct StoryParse {
  double log_probability = 0;  // natural log of the sum over all derivations
  double derivations = 0;      // how many there are; 1 for every story of the grammar
};
/// Parses one story, its empty line included. A text that is no story has 0 derivations.
StoryParse parse_story(std::string_view story);

/// log P(story). Throws for a text that is no story.
double story_log_probability(std::string_view story);

/// H(story) in nats and E[length] in characters, worked out from the grammar, not sampled.
double story_entropy();
double story_mean_length();

/// story_entropy() / story_mean_length(): the entropy rate of an endless text of stories, in nats
/// per character. It is exactly the mean loss per character, over a long text, of a model that
/// knows the grammar and sees its text from a story's beginning on; no model of characters can do
/// better. A model that reads windows, which begin in the middle of a story, lacks what came
/// before them and comes close from above only. A finite text strays from the mean by chance.
double stories_entropy_per_character();

}  // namespace tapeformer
