#include <algorithm>

#include "core/check.h"
#include "core/random.h"
#include "data/corpus.h"

namespace tapeformer {

LineCorpus::LineCorpus(const Text& text, const Tokenizer& tokenizer, const BatchOptions& options)
    : Corpus(options), tokens_(text, tokenizer, true) {
  if (text.view().find('\n') != std::string_view::npos) {
    const std::vector<int32_t> newline = tokenizer.encode("\n");
    check(newline.size() == 1, "corpus: lines need a tokenizer for which a newline is one token");
    newline_ = newline[0];
    find_lines(tokenizer);
  }
  const int64_t n = static_cast<int64_t>(lines_.size());
  training_lines_ =
      static_cast<int64_t>(static_cast<double>(n) * (1.0 - options.validation_fraction));
  check(
      training_lines_ > 0, "corpus: '", text.name(), "' has ", n,
      " lines that are not empty, too few for training and validation; give one example per line");
  shuffle();
  for (int64_t i = 0; i < n; ++i) {
    cut_lines_ += lines_[i].length >= options.context;
    (i < training_lines_ ? training_tokens_ : validation_tokens_) += targets_of(lines_[i]);
  }
}

void LineCorpus::find_lines(const Tokenizer& tokenizer) {
  const int64_t n = tokens_.size();
  for (int64_t begin = 0; begin < n;) {
    int64_t end = begin;
    while (end < n && tokens_[end] != newline_) ++end;
    int64_t length = end - begin;
    if (length > 0 && tokenizer.decode(tokens_[end - 1]) == "\r") --length;
    if (length > 0)
      lines_.push_back({begin, length});
    else
      ++empty_lines_;
    begin = end + 1;
  }
}

/// Fisher & Yates. The same for all seeds, so that the validation part is.
void LineCorpus::shuffle() {
  Generator random(RandomKey{0, Purpose::batches, 0, ~uint32_t{0}});
  for (size_t i = lines_.size(); i > 1; --i)
    std::swap(lines_[i - 1], lines_[random.below(static_cast<uint32_t>(i))]);
}

/// The line and the newline that ends it, as far as they fit.
int64_t LineCorpus::targets_of(const Line& line) const {
  return std::min(line.length + 1, options_.context);
}

int64_t LineCorpus::validation_examples() const {
  return static_cast<int64_t>(lines_.size()) - training_lines_;
}

Batch LineCorpus::training_batch(int64_t step, int64_t micro_batch) const {
  std::vector<int64_t> lines(options_.rows);
  for (int64_t row = 0; row < options_.rows; ++row)
    lines[row] = draw(training_lines_, step, micro_batch, row);
  return padded(lines);
}

Batch LineCorpus::validation_rows(const std::vector<int64_t>& examples) const {
  std::vector<int64_t> lines;
  for (const int64_t example : examples) lines.push_back(training_lines_ + example);
  return padded(lines);
}

Batch LineCorpus::padded(const std::vector<int64_t>& lines) const {
  const int64_t B = static_cast<int64_t>(lines.size());
  int64_t T = 0;
  for (const int64_t line : lines) T = std::max(T, targets_of(lines_[line]));
  Batch batch{Tensor::full({B, T}, newline_, DType::i32), Tensor::full({B, T}, -1, DType::i32),
              Tensor::empty({B}, DType::i32), 0};
  for (int64_t row = 0; row < B; ++row) {
    const Line& line = lines_[lines[row]];
    const int64_t n = targets_of(line);
    int32_t* const inputs = batch.inputs.data<int32_t>() + row * T;
    int32_t* const targets = batch.targets.data<int32_t>() + row * T;
    tokens_.read(line.begin, n - 1, inputs + 1);  // after the newline that begins it
    tokens_.read(line.begin, std::min(n, line.length), targets);
    if (n > line.length) targets[line.length] = newline_;
    batch.lengths.data<int32_t>()[row] = static_cast<int32_t>(n);
    batch.tokens += n;
  }
  return batch;
}

}  // namespace tapeformer
