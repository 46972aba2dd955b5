#include "data/parallel.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/random.h"
#include "data/lines.h"
#include "data/unicode.h"
#include "data/utf8.h"

namespace tapeformer {

std::vector<SentencePair> read_pairs(const std::string& source_path,
                                     const std::string& target_path) {
  std::vector<std::string> sources = read_lines(source_path);
  std::vector<std::string> targets = read_lines(target_path);
  check(sources.size() == targets.size(), "parallel text: '", source_path, "' has ", sources.size(),
        " lines and '", target_path, "' ", targets.size(),
        "; line i of one must be the translation of line i of the other");
  check(!sources.empty(), "parallel text: '", source_path, "' and '", target_path, "' are empty");
  std::vector<SentencePair> pairs;
  for (size_t i = 0; i < sources.size(); ++i)
    pairs.push_back({std::move(sources[i]), std::move(targets[i])});
  return pairs;
}

// ---- SentenceCoder.

SentenceCoder::SentenceCoder(std::shared_ptr<const Tokenizer> tokenizer, bool lowercase)
    : tokenizer_(std::move(tokenizer)), lowercase_(lowercase) {}

std::vector<int32_t> SentenceCoder::encode(std::string_view sentence) const {
  constexpr std::string_view spaces = " \t\r\n";
  const size_t begin = sentence.find_first_not_of(spaces);
  if (begin == sentence.npos) return {};
  sentence = sentence.substr(begin, sentence.find_last_not_of(spaces) + 1 - begin);
  return tokenizer_->encode(" " + (lowercase_ ? lower_case(sentence) : std::string(sentence)));
}

std::string SentenceCoder::decode(std::span<const int32_t> ids) const {
  const auto stop = std::find(ids.begin(), ids.end(), end());
  Utf8Stream characters;
  std::string text =
      characters.push(tokenizer_->decode(ids.first(static_cast<size_t>(stop - ids.begin()))));
  text += characters.finish();
  if (text.starts_with(' ')) text.erase(0, 1);
  std::replace(text.begin(), text.end(), '\n', ' ');  // a translation is one line
  return text;
}

// ---- Batches.

PaddedSentences pad(const std::vector<std::vector<int32_t>>& sentences, int32_t end,
                    int64_t places) {
  check(!sentences.empty(), "pad: no sentence");
  const int64_t B = static_cast<int64_t>(sentences.size());
  size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size());
  const int64_t S = std::max(places, static_cast<int64_t>(longest) + 1);
  PaddedSentences result{Tensor::full({B, S}, end, DType::i32), Tensor::empty({B}, DType::i32)};
  for (int64_t b = 0; b < B; ++b) {
    std::copy(sentences[b].begin(), sentences[b].end(), result.ids.data<int32_t>() + b * S);
    result.lengths.data<int32_t>()[b] = static_cast<int32_t>(sentences[b].size()) + 1;
  }
  return result;
}

double PairBatch::padding() const {
  const auto places = static_cast<double>(source.ids.numel() + inputs.numel());
  return 1 - static_cast<double>(tokens + source_tokens) / places;
}

PairCorpus::PairCorpus(const std::vector<SentencePair>& pairs, const SentenceCoder& source,
                       const SentenceCoder& target, const PairOptions& options)
    : options_(options), source_end_(source.end()), target_end_(target.end()) {
  check(options.longest > 1, "parallel text: longest must be at least 2, a token and the end, got ",
        options.longest);
  check(options.batch_tokens >= options.longest, "parallel text: a batch of ", options.batch_tokens,
        " tokens must hold a sentence of ", options.longest,
        ", the longest allowed; raise batch_tokens or lower longest");
  check(pairs.size() < INT32_MAX, "parallel text: more than 2^31 pairs");
  for (const SentencePair& pair : pairs) {
    Pair ids{source.encode(pair.source), target.encode(pair.target)};
    if (ids.source.empty() || ids.target.empty()) {
      ++empty_;
    } else if (ids.longer() > options.longest) {
      ++long_;
    } else {
      source_tokens_ += static_cast<int64_t>(ids.source.size()) + 1;
      target_tokens_ += static_cast<int64_t>(ids.target.size()) + 1;
      pairs_.push_back(std::move(ids));
    }
  }
  check(!pairs_.empty(), "parallel text: of ", pairs.size(), " pairs ", empty_,
        " have an empty side and ", long_, " are longer than ", options.longest,
        " tokens, so none is left");
  std::stable_sort(pairs_.begin(), pairs_.end(),
                   [&](const Pair& a, const Pair& b) { return places_of(a) < places_of(b); });
  // Where a batch begins depends on the lengths alone, so every pass has as many.
  const auto count = static_cast<int32_t>(pairs_.size());
  for (int32_t begin = 0; begin < count;) {
    int32_t end = begin;
    while (end < count && (end + 1 - begin) * places_of(pairs_[end]) <= options.batch_tokens) ++end;
    ranges_.push_back({begin, end});
    begin = end;
  }
  batches_ = static_cast<int64_t>(ranges_.size());
}

int64_t PairCorpus::places_of(const Pair& pair) const {
  return options_.fixed_length ? options_.longest : pair.longer();
}

// Fisher & Yates.
template <class T>
static void shuffle(Generator& random, T* begin, size_t count) {
  for (size_t i = count; i > 1; --i)
    std::swap(begin[i - 1], begin[random.below(static_cast<uint32_t>(i))]);
}

// Pairs that take as many places are mixed; then batches are.
PairCorpus::Pass PairCorpus::make_pass(int64_t number) const {
  Generator random({options_.seed, Purpose::batches, static_cast<uint32_t>(number), 1});
  Pass pass{number, std::vector<int32_t>(pairs_.size()), ranges_};
  std::iota(pass.order.begin(), pass.order.end(), 0);
  for (size_t begin = 0; begin < pairs_.size();) {
    size_t end = begin;
    while (end < pairs_.size() && places_of(pairs_[end]) == places_of(pairs_[begin])) ++end;
    shuffle(random, pass.order.data() + begin, end - begin);
    begin = end;
  }
  shuffle(random, pass.batches.data(), pass.batches.size());
  return pass;
}

PairBatch PairCorpus::training_batch(int64_t number) const {
  check(number >= 0, "training_batch: batches count from 0, got ", number);
  const std::lock_guard lock(mutex_);
  if (pass_.number != number / batches_) pass_ = make_pass(number / batches_);
  const Range range = pass_.batches[number % batches_];
  return make_batch(pass_.order.data() + range.begin, pass_.order.data() + range.end);
}

PairBatch PairCorpus::ordered_batch(int64_t i) const {
  check(i >= 0 && i < batches_, "ordered_batch: there is no batch ", i, " of ", batches_);
  std::vector<int32_t> order(ranges_[i].end - ranges_[i].begin);
  std::iota(order.begin(), order.end(), ranges_[i].begin);
  return make_batch(order.data(), order.data() + order.size());
}

PairBatch PairCorpus::make_batch(const int32_t* begin, const int32_t* end) const {
  std::vector<std::vector<int32_t>> sources, targets;
  for (const int32_t* pair = begin; pair != end; ++pair) {
    sources.push_back(pairs_[*pair].source);
    targets.push_back(pairs_[*pair].target);
  }
  PairBatch batch;
  const int64_t places = options_.fixed_length ? options_.longest : 0;
  batch.source = pad(sources, source_end_, places);
  const PaddedSentences target = pad(targets, target_end_, places);
  const int64_t B = target.ids.dim(0), T = target.ids.dim(1);
  batch.lengths = target.lengths;
  batch.inputs = Tensor::empty({B, T}, DType::i32);
  batch.targets = target.ids;
  for (int64_t b = 0; b < B; ++b) {
    int32_t* const row = batch.targets.data<int32_t>() + b * T;
    int32_t* const input = batch.inputs.data<int32_t>() + b * T;
    input[0] = target_end_;
    std::copy(row, row + T - 1, input + 1);
    const int32_t length = batch.lengths.data<int32_t>()[b];
    std::fill(row + length, row + T, -1);
    batch.tokens += length;
    batch.source_tokens += batch.source.lengths.data<int32_t>()[b];
  }
  return batch;
}

}  // namespace tapeformer
