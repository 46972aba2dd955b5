// Sentences and their translations: from two files, as ids, in batches of about equal lengths.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/tokenizer.h"

namespace tapeformer {

struct SentencePair {
  std::string source, target;
};

/// Line i of one file belongs to line i of the other; both plain or gzip. Throws when their numbers
/// of lines differ, with both, for files without a line, and for what read_lines() refuses.
std::vector<SentencePair> read_pairs(const std::string& source_path,
                                     const std::string& target_path);

/// Sentences to ids and back. A sentence is encoded with a space before it, so that its first word
/// is the same word as elsewhere. One more id than the tokenizer's ends every sentence.
class SentenceCoder {
 public:
  SentenceCoder(std::shared_ptr<const Tokenizer> tokenizer, bool lowercase);

  /// Without the end. Spaces around the sentence are dropped; none is left of an empty one.
  std::vector<int32_t> encode(std::string_view sentence) const;
  /// Up to the first end: one line of UTF-8, where bytes that are none become U+FFFD.
  std::string decode(std::span<const int32_t> ids) const;
  int32_t end() const { return static_cast<int32_t>(tokenizer_->vocabulary_size()); }
  /// Of the tokenizer, and the end.
  int64_t vocabulary() const { return tokenizer_->vocabulary_size() + 1; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool lowercase() const { return lowercase_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool lowercase_;
};

/// B sentences, padded behind their ends to the longest.
struct PaddedSentences {
  Tensor ids;      // [B, S] i32
  Tensor lengths;  // [B] i32
};
/// Each sentence and the end, which pads too: to the longest, or to `places` if that is more. At
/// least one sentence.
PaddedSentences pad(const std::vector<std::vector<int32_t>>& sentences, int32_t end,
                    int64_t places = 0);

struct PairBatch {
  PaddedSentences source;  // each with its end
  Tensor inputs;           // [B, T] i32: the end, then the target: what the decoder has read
  Tensor targets;          // [B, T] i32: the target, then the end; -1 where it is padding
  Tensor lengths;          // [B] i32: of the targets, the end counted
  int64_t tokens = 0;      // targets that are not padding
  int64_t source_tokens = 0;
  /// Of the places of ids and inputs, those that are padding.
  double padding() const;
};

struct PairOptions {
  int64_t batch_tokens = 4096;  // rows times the longest sentence of either side, at most
  int64_t longest = 128;        // tokens of a sentence, its end counted; pairs beyond are dropped
  uint64_t seed = 1;
  /// Every sentence is padded to `longest`, and so batches mix all lengths.
  bool fixed_length = false;
};

/// Pairs in batches of sentences of equal length, as far as there are enough. Which pairs a batch
/// holds is a pure function of (seed, its number): a pass over the corpus has batches() batches,
/// and each pass mixes and orders them anew.
class PairCorpus {
 public:
  /// Drops and counts the pairs with an empty side and those that are too long. Throws when none is
  /// left.
  PairCorpus(const std::vector<SentencePair>& pairs, const SentenceCoder& source,
             const SentenceCoder& target, const PairOptions& options);

  PairBatch training_batch(int64_t number) const;
  int64_t batches() const { return batches_; }
  /// Batch i of a pass in order of length, the same every time.
  PairBatch ordered_batch(int64_t i) const;

  int64_t pairs() const { return static_cast<int64_t>(pairs_.size()); }
  int64_t empty_pairs() const { return empty_; }
  int64_t long_pairs() const { return long_; }
  /// Of the sources and of the targets, their ends counted.
  int64_t source_tokens() const { return source_tokens_; }
  int64_t target_tokens() const { return target_tokens_; }

 private:
  struct Pair {
    std::vector<int32_t> source, target;
    int64_t longer() const {
      return static_cast<int64_t>(std::max(source.size(), target.size())) + 1;
    }
  };
  struct Range {
    int32_t begin, end;  // of an order of pairs
  };
  struct Pass {
    int64_t number = -1;
    std::vector<int32_t> order;  // of pairs
    std::vector<Range> batches;  // of them, in the order of training
  };
  int64_t places_of(const Pair& pair) const;  // in a batch, on either side
  Pass make_pass(int64_t number) const;
  PairBatch make_batch(const int32_t* begin, const int32_t* end) const;

  PairOptions options_;
  int32_t source_end_, target_end_;
  std::vector<Pair> pairs_;
  std::vector<Range> ranges_;  // of pairs in order of length
  int64_t batches_ = 0, empty_ = 0, long_ = 0, source_tokens_ = 0, target_tokens_ = 0;
  mutable std::mutex mutex_;
  mutable Pass pass_;  // the latest
};

}  // namespace tapeformer
