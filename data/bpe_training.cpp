// Learning the merges of a byte-pair encoding: the most frequent pair of neighbours becomes a
// token, again and again (Sennrich et al. 2016, algorithm 1). The words that hold a pair are known,
// so a merge visits these alone.
#include <algorithm>
#include <queue>
#include <utility>

#include "core/check.h"
#include "data/bpe.h"
#include "data/pretokens.h"

namespace tapeformer {
namespace {

constexpr size_t longest_word = 256;
constexpr int32_t no_token = -1, any_token = -2;

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t key =
        uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second);
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15) >> 16);
  }
};

class Merging {
 public:
  explicit Merging(const std::unordered_map<std::string, int64_t>& counts) {
    for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    for (int byte = 0; byte < 256; ++byte) ids_.emplace(tokens_[byte], byte);
    for (const auto& [text, count] : counts) {
      Word& word = words_.emplace_back();
      word.count = count;
      for (const char byte : text) word.ids.push_back(static_cast<uint8_t>(byte));
    }
    for (uint32_t i = 0; i < words_.size(); ++i) add_pairs(i, words_[i].count, any_token);
    for (const auto& [pair, place] : pairs_) candidates_.push({place.count, pair});
  }

  /// Makes the most frequent pair a token. False where none occurs twice.
  bool merge_next() {
    while (!candidates_.empty()) {
      const auto [count, pair] = candidates_.top();
      candidates_.pop();
      const int64_t now = pairs_.at(pair).count;
      if (now == count) {
        if (count < 2) return false;
        merge(pair);
        return true;
      }
      if (now < count) candidates_.push({now, pair});  // merges since then took some of it away
    }
    return false;
  }

  std::shared_ptr<const BpeTokenizer> result() {
    return std::make_shared<BpeTokenizer>(std::move(tokens_), std::move(merges_));
  }

 private:
  struct Word {
    std::vector<int32_t> ids;
    int64_t count = 0;
  };
  struct Place {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that hold the pair or once did, some of them twice
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // the largest comes first
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  // Adds `count` to the pairs of a word, and lists the word with those that hold `token`.
  void add_pairs(uint32_t index, int64_t count, int32_t token) {
    const std::vector<int32_t>& ids = words_[index].ids;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Pair pair{ids[i], ids[i + 1]};
      Place& place = pairs_[pair];
      place.count += count;
      if (token != any_token && token != pair.first && token != pair.second) continue;
      if (place.words.empty() || place.words.back() != index) place.words.push_back(index);
      if (token != any_token) new_pairs_.push_back(pair);
    }
  }

  void merge(const Pair& pair) {
    // Two pairs may join to the same bytes: to one token.
    const std::string joined = tokens_[pair.first] + tokens_[pair.second];
    const auto [entry, is_new] = ids_.emplace(joined, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(joined);
    const int32_t token = entry->second;
    merges_.push_back({pair.first, pair.second, token});
    new_pairs_.clear();
    for (const uint32_t index : std::exchange(pairs_.at(pair).words, {})) {
      Word& word = words_[index];
      std::vector<int32_t> merged;
      for (size_t i = 0; i < word.ids.size(); ++i) {
        const bool here =
            word.ids[i] == pair.first && i + 1 < word.ids.size() && word.ids[i + 1] == pair.second;
        merged.push_back(here ? token : word.ids[i]);
        i += here;
      }
      if (merged.size() == word.ids.size()) continue;
      add_pairs(index, -word.count, no_token);
      word.ids = std::move(merged);
      add_pairs(index, word.count, token);
    }
    std::sort(new_pairs_.begin(), new_pairs_.end());
    new_pairs_.erase(std::unique(new_pairs_.begin(), new_pairs_.end()), new_pairs_.end());
    for (const Pair& fresh : new_pairs_) candidates_.push({pairs_.at(fresh).count, fresh});
  }

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<BpeMerge> merges_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Place, PairHash> pairs_;
  std::vector<Pair> new_pairs_;
  std::priority_queue<Candidate> candidates_;
};

}  // namespace

void BpeTrainer::add(std::string_view text) {
  for_pretokens(text, [&](std::string_view word) {
    if (word.size() <= longest_word) ++counts_[std::string(word)];
  });
}

std::shared_ptr<const BpeTokenizer> BpeTrainer::train(int64_t merges) const {
  check(merges >= 0, "bpe: the number of merges must not be negative, got ", merges);
  check(!counts_.empty(), "bpe: there is no text to learn from");
  Merging merging(counts_);
  for (int64_t i = 0; i < merges && merging.merge_next(); ++i) continue;
  return merging.result();
}

}  // namespace tapeformer
