// The grammar that data/stories.h speaks of, in the notation of data/grammar.h.
#pragma once

namespace tapeformer {

extern const char* const stories_plots;
extern const char* const stories_words;

}  // namespace tapeformer
