// A small language pair of our own, to learn translating without a download. Its source language
// looks like English. Its target language, Tolu, has other words and another order: the place comes
// first and the verb last, adjectives follow their noun and agree with it in class and number, an
// object is marked, prepositions follow their noun, and a question begins with a word of its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/parallel.h"

namespace tapeformer {

/// A function of the seed alone; more pairs begin with the fewer. A source has exactly one
/// translation, so a model that knows the languages has a BLEU of 100.
std::vector<SentencePair> generate_pairs(uint64_t seed, int64_t count);

/// In how many ways the grammar writes this pair: 1, or 0 for what is none of it.
double pair_derivations(const SentencePair& pair);

}  // namespace tapeformer
