// Turning sources into translations: greedy, beam search and sampling, many sentences at a time.
#pragma once

#include <vector>

#include "data/parallel.h"
#include "layers/seq2seq.h"
#include "train/sampling.h"
#include "train/stop.h"

namespace tapeformer {

struct DecodingOptions {
  int64_t beam = 5;           ///< hypotheses per sentence, at most 10,000; 1: greedy
  double length_penalty = 1;  ///< alpha of ((5 + length) / 6)^alpha, which divides the log
                              ///< probability (Wu et al. 2016, eq. 14)
  int64_t longest = 0;  ///< tokens of a translation, its end counted; 0: twice the source and 10
  StopRequest stop{};   ///< asked before each token
};

struct Translation {
  std::vector<int32_t> ids;    ///< without the end
  double log_probability = 0;  ///< in nats, of the ids and the end
  double score = 0;            ///< divided by the length penalty: what the beam ranks by
};

/// One translation for each source, the same whatever else is in the batch (up to rounding). `end`
/// begins and ends a target. No translation is longer than `longest` or the model's context: where
/// it would be, its end is forced. A sentence's search is over when `beam` of its hypotheses have
/// ended. Works over the cache; where a norm of the decoder mixes time steps, without one. Throws
/// for options without sense, and where the model's logits are not finite.
std::vector<Translation> translate(Seq2Seq& model, const PaddedSentences& source, int32_t end,
                                   const DecodingOptions& options);

/// Draws each token instead, as sample_token() does: one translation for each source, whose draws
/// are the stream of its key.
std::vector<Translation> sample_translations(Seq2Seq& model, const PaddedSentences& source,
                                             int32_t end, const SamplingOptions& sampling,
                                             const std::vector<RandomKey>& keys,
                                             int64_t longest = 0);

/// The mean over blocks and heads of the weights with which the decoder, reading the end and then
/// `target`, looks at the source: [T, S] in rows, T = target + 1.
std::vector<std::vector<double>> attention_of(Seq2Seq& model, const std::vector<int32_t>& source,
                                              const std::vector<int32_t>& target,
                                              int32_t source_end, int32_t target_end);

}  // namespace tapeformer
