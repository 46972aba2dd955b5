#include "data/corpus.h"

#include <algorithm>

#include "core/check.h"
#include "core/random.h"

namespace tapeformer {

// ---- What corpora share.

Corpus::Corpus(const BatchOptions& options) : options_(options) {
  check(options.rows > 0, "corpus: a batch needs at least one row, got ", options.rows);
  check(options.context > 0, "corpus: the context must be at least 1, got ", options.context);
  check(options.rows <= INT32_MAX / options.context, "corpus: a batch of ", options.rows,
        " rows of ", options.context,
        " tokens is larger than any memory; lower batch (the rows) or context");
  check(options.validation_fraction >= 0 && options.validation_fraction < 1,
        "corpus: the validation fraction must be in [0, 1), got ", options.validation_fraction);
}

int64_t Corpus::draw(int64_t n, int64_t step, int64_t micro_batch, int64_t row) const {
  check(step >= 0 && micro_batch >= 0, "training_batch: step and micro-batch count from 0, got ",
        step, " and ", micro_batch);
  const RandomKey key{options_.seed, Purpose::batches, static_cast<uint32_t>(step),
                      static_cast<uint32_t>(step >> 32)};
  const Philox4 words = key.block(static_cast<uint32_t>(micro_batch * options_.rows + row));
  const uint64_t random = uint64_t{words[0]} << 32 | words[1];
  // floor(random / 2^64 * n): uniform up to n / 2^64.
  return static_cast<int64_t>(static_cast<unsigned __int128>(random) * n >> 64);
}

int64_t Corpus::validation_batches(int64_t at_most) const {
  const int64_t all = (validation_examples() + options_.rows - 1) / options_.rows;
  return at_most > 0 ? std::min(at_most, all) : all;
}

Batch Corpus::validation_batch(int64_t i, int64_t of) const {
  const int64_t all = validation_batches(), n = validation_examples(), rows = options_.rows;
  check(of <= all && i >= 0 && i < of, "validation_batch: there is no batch ", i, " of ", of,
        "; a full pass has ", all);
  std::vector<int64_t> examples;
  for (int64_t j = i * rows; j < std::min((i + 1) * rows, n); ++j)
    examples.push_back(of == all ? j : j * n / (of * rows));
  return validation_rows(examples);
}

// ---- TokenArray.

TokenArray::TokenArray(const Text& text, const Tokenizer& tokenizer, bool line_by_line)
    : narrow_(text) {
  if (dynamic_cast<const ByteTokenizer*>(&tokenizer)) {
    size_ = static_cast<int64_t>(text.view().size());
  } else if (tokenizer.vocabulary_size() <= 256) {
    std::string ids;
    ids.reserve(text.view().size());
    tokenizer.encode(text.view(), [&](std::span<const int32_t> piece) {
      ids.insert(ids.end(), piece.begin(), piece.end());
    });
    size_ = static_cast<int64_t>(ids.size());
    narrow_ = Text(std::move(ids), text.name());
  } else {
    const Tokenizer::Sink append = [&](std::span<const int32_t> piece) {
      wide_.insert(wide_.end(), piece.begin(), piece.end());
    };
    std::string_view rest = text.view();
    while (line_by_line && rest.find('\n') != rest.npos) {
      const size_t end = rest.find('\n');
      tokenizer.encode(rest.substr(0, end), append);
      tokenizer.encode("\n", append);
      rest.remove_prefix(end + 1);
    }
    tokenizer.encode(rest, append);
    size_ = static_cast<int64_t>(wide_.size());
  }
}

void TokenArray::read(int64_t begin, int64_t count, int32_t* out) const {
  if (wide_.empty())
    std::copy_n(bytes() + begin, count, out);
  else
    std::copy_n(wide_.data() + begin, count, out);
}

// ---- TextCorpus.

TextCorpus::TextCorpus(const Text& text, const Tokenizer& tokenizer, const BatchOptions& options)
    : Corpus(options), tokens_(text, tokenizer) {
  const int64_t n = tokens_.size(), window = options.context + 1;
  split_ = static_cast<int64_t>(static_cast<double>(n) * (1.0 - options.validation_fraction));
  const auto check_part = [&](const char* part, int64_t tokens) {
    check(tokens >= window, "corpus: '", text.name(), "' has ", n, " tokens, ", tokens,
          " of them for ", part, ", but one example takes ", window, " (a context of ",
          options.context, ", and one token to predict); lower context or give more text");
  };
  check_part("training", split_);
  if (options.validation_fraction > 0) check_part("validation", n - split_);
}

int64_t TextCorpus::validation_examples() const {
  return std::max<int64_t>(0, validation_tokens() - 1) / options_.context;
}

Batch TextCorpus::training_batch(int64_t step, int64_t micro_batch) const {
  std::vector<int64_t> starts(options_.rows);
  for (int64_t row = 0; row < options_.rows; ++row)
    starts[row] = draw(split_ - options_.context, step, micro_batch, row);
  return windows(starts);
}

Batch TextCorpus::validation_rows(const std::vector<int64_t>& examples) const {
  std::vector<int64_t> starts;
  for (const int64_t example : examples) starts.push_back(split_ + example * options_.context);
  return windows(starts);
}

Batch TextCorpus::windows(const std::vector<int64_t>& starts) const {
  const int64_t B = static_cast<int64_t>(starts.size()), T = options_.context;
  Batch batch{Tensor::empty({B, T}, DType::i32), Tensor::empty({B, T}, DType::i32), {}, B * T};
  for (int64_t row = 0; row < B; ++row) {
    tokens_.read(starts[row], T, batch.inputs.data<int32_t>() + row * T);
    tokens_.read(starts[row] + 1, T, batch.targets.data<int32_t>() + row * T);
  }
  return batch;
}

}  // namespace tapeformer
