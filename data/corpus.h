// Batches for language models. Which examples a batch holds is a pure function of (seed, step), so
// a resumed run needs to know nothing but its step, and evaluation never disturbs training.
#pragma once

#include <memory>
#include <vector>

#include "core/tensor.h"
#include "data/text.h"
#include "data/tokenizer.h"

namespace tapeformer {

struct Batch {
  Tensor inputs;       // [B, T] i32
  Tensor targets;      // [B, T] i32: the token that follows each input; -1 where none is asked for
  Tensor lengths;      // [B] i32: inputs that are no padding; undefined when there is no padding
  int64_t tokens = 0;  // targets that are not -1
};

struct BatchOptions {
  int64_t rows = 12;     // B
  int64_t context = 64;  // T, or for lines the longest T
  uint64_t seed = 0;     // of the training batches
  double validation_fraction = 0.1;
};

class Corpus {
 public:
  virtual ~Corpus() = default;

  /// Examples drawn uniformly from the training part. Micro-batches of a step are consecutive
  /// parts of one larger batch: 2 of 6 rows hold what 1 of 12 rows does.
  virtual Batch training_batch(int64_t step, int64_t micro_batch = 0) const = 0;

  /// How many batches a validation pass takes: all of them, or `at_most` where that is not 0.
  int64_t validation_batches(int64_t at_most = 0) const;
  /// Batch i of a pass of `of` batches. A pass of all batches holds every example once, its last
  /// batch perhaps fewer rows; a shorter pass holds examples evenly spread, the same every time.
  Batch validation_batch(int64_t i, int64_t of) const;

  virtual int64_t training_tokens() const = 0;
  virtual int64_t validation_tokens() const = 0;
  virtual int64_t validation_examples() const = 0;
  const BatchOptions& options() const { return options_; }

 protected:
  explicit Corpus(const BatchOptions& options);
  virtual Batch validation_rows(const std::vector<int64_t>& examples) const = 0;
  /// In [0, n), for one row of a step's training batches.
  int64_t draw(int64_t n, int64_t step, int64_t micro_batch, int64_t row) const;

  BatchOptions options_;
};

/// Token ids: one byte each where the vocabulary has at most 256, else four.
class TokenArray {
 public:
  /// `line_by_line`: no token joins a newline with what stands beside it.
  TokenArray(const Text& text, const Tokenizer& tokenizer, bool line_by_line = false);
  int64_t size() const { return size_; }
  int32_t operator[](int64_t i) const { return wide_.empty() ? bytes()[i] : wide_[i]; }
  void read(int64_t begin, int64_t count, int32_t* out) const;

 private:
  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(narrow_.view().data()); }

  Text narrow_;  // the ids as bytes: under the byte tokenizer, the text itself
  std::vector<int32_t> wide_;
  int64_t size_ = 0;
};

/// One long text. Of its n tokens the first floor(n (1 - validation_fraction)) are for training:
/// windows of T + 1 tokens from anywhere. The others are for validation: floor((n_val - 1) / T)
/// windows that do not overlap, each predicting T tokens.
class TextCorpus : public Corpus {
 public:
  /// Throws when a part is shorter than one window.
  TextCorpus(const Text& text, const Tokenizer& tokenizer, const BatchOptions& options);

  Batch training_batch(int64_t step, int64_t micro_batch = 0) const override;
  int64_t training_tokens() const override { return split_; }
  int64_t validation_tokens() const override { return tokens_.size() - split_; }
  int64_t validation_examples() const override;

 private:
  Batch validation_rows(const std::vector<int64_t>& examples) const override;
  Batch windows(const std::vector<int64_t>& starts) const;

  TokenArray tokens_;
  int64_t split_ = 0;
};

/// One example per line (names, sentences): a newline begins and ends it. Rows are padded to the
/// longest of their batch. Empty lines are dropped, lines of `context` or more tokens are cut. The
/// lines are shuffled in a fixed way before the last validation_fraction is split off.
class LineCorpus : public Corpus {
 public:
  /// Throws when a part would hold no line.
  LineCorpus(const Text& text, const Tokenizer& tokenizer, const BatchOptions& options);

  Batch training_batch(int64_t step, int64_t micro_batch = 0) const override;
  int64_t training_tokens() const override { return training_tokens_; }
  int64_t validation_tokens() const override { return validation_tokens_; }
  int64_t training_examples() const { return training_lines_; }
  int64_t validation_examples() const override;
  int64_t empty_lines() const { return empty_lines_; }
  int64_t cut_lines() const { return cut_lines_; }

 private:
  struct Line {
    int64_t begin, length;
  };
  void find_lines(const Tokenizer& tokenizer);
  void shuffle();
  int64_t targets_of(const Line& line) const;
  Batch validation_rows(const std::vector<int64_t>& examples) const override;
  Batch padded(const std::vector<int64_t>& lines) const;

  TokenArray tokens_;
  int32_t newline_ = 0;
  std::vector<Line> lines_;  // shuffled
  int64_t training_lines_ = 0, training_tokens_ = 0, validation_tokens_ = 0;
  int64_t empty_lines_ = 0, cut_lines_ = 0;
};

}  // namespace tapeformer
