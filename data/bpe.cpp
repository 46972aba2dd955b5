#include "data/bpe.h"

#include <algorithm>
#include <queue>

#include "core/check.h"
#include "data/pretokens.h"

namespace tapeformer {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

std::string shown(const std::string& token) {
  return token.size() > 40 ? token.substr(0, 40) + "..." : token;
}

}  // namespace

BpeTokenizer::BpeTokenizer(std::vector<std::string> tokens, std::vector<BpeMerge> merges)
    : tokens_(std::move(tokens)), merges_(std::move(merges)) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens_.size(); ++id)
    check(ids.emplace(tokens_[id], static_cast<int32_t>(id)).second, "bpe: the token '",
          shown(tokens_[id]), "' stands twice in the vocabulary");
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    check(found != ids.end(), "bpe: the vocabulary has no token for byte ", byte,
          "; it needs all 256");
    byte_ids_[byte] = found->second;
  }
  const auto known = [&](int32_t id) { return id >= 0 && id < vocabulary_size(); };
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const auto& [left, right, result] = merges_[rank];
    check(known(left) && known(right) && known(result) &&
              tokens_[result] == tokens_[left] + tokens_[right],
          "bpe: merge ", rank, " joins tokens that the vocabulary does not have");
    // Where a pair stands twice, the first counts.
    ranks_.emplace(key_of(left, right), static_cast<int32_t>(rank));
  }
}

int32_t BpeTokenizer::rank_of(int32_t left, int32_t right) const {
  const auto found = ranks_.find(key_of(left, right));
  return found == ranks_.end() ? -1 : found->second;
}

namespace {

/// A word whose neighbours merge: a list of symbols, and the merges that are possible, the lowest
/// rank first and from left to right within it.
class Word {
 public:
  Word(std::string_view bytes, const std::array<int32_t, 256>& byte_ids) {
    for (const char byte : bytes) {
      const auto at = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({byte_ids[static_cast<uint8_t>(byte)], at - 1, at + 1});
    }
  }

  /// All merges of a rank happen before those that they make possible.
  template <class Rank>
  void merge(const Rank& rank_of, const std::vector<BpeMerge>& merges) {
    for (int32_t at = 0; at + 1 < size(); ++at) note(at, rank_of);
    hand_over();
    int32_t rank = -1;
    while (!possible_.empty() || !fresh_.empty()) {
      if (possible_.empty() || (!fresh_.empty() && possible_.top().first != rank)) hand_over();
      const auto [next, at] = possible_.top();
      possible_.pop();
      rank = next;
      apply(at, merges[rank], rank_of);
    }
  }

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids;
    for (int32_t at = 0; at < size(); at = symbols_[at].next) ids.push_back(symbols_[at].id);
    return ids;
  }

 private:
  struct Symbol {
    int32_t id, previous, next;  // id -1: merged away
  };
  using Possible = std::pair<int32_t, int32_t>;  // rank, position of the left symbol

  int32_t size() const { return static_cast<int32_t>(symbols_.size()); }

  template <class Rank>
  void note(int32_t at, const Rank& rank_of) {
    if (at < 0 || symbols_[at].next >= size()) return;
    const int32_t rank = rank_of(symbols_[at].id, symbols_[symbols_[at].next].id);
    if (rank >= 0) fresh_.emplace_back(rank, at);
  }
  void hand_over() {
    for (const Possible& merge : fresh_) possible_.push(merge);
    fresh_.clear();
  }
  template <class Rank>
  void apply(int32_t at, const BpeMerge& merge, const Rank& rank_of) {
    Symbol& left = symbols_[at];
    if (left.id != merge.left || left.next >= size()) return;  // an earlier merge took it
    Symbol& right = symbols_[left.next];
    if (right.id != merge.right) return;
    left.id = merge.result;
    right.id = -1;
    left.next = right.next;
    if (left.next < size()) symbols_[left.next].previous = at;
    note(left.previous, rank_of);
    note(at, rank_of);
  }

  std::vector<Symbol> symbols_;
  std::vector<Possible> fresh_;
  std::priority_queue<Possible, std::vector<Possible>, std::greater<>> possible_;
};

}  // namespace

std::vector<int32_t> BpeTokenizer::merge(std::string_view bytes) const {
  Word word(bytes, byte_ids_);
  word.merge([&](int32_t left, int32_t right) { return rank_of(left, right); }, merges_);
  return word.ids();
}

const std::vector<int32_t>& BpeTokenizer::ids_of(std::string_view word,
                                                 std::vector<int32_t>& scratch) const {
  constexpr size_t longest_known = 64, most_known = 65'536;
  if (word.size() <= longest_known) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(word);
    if (found != known_.end()) return found->second;  // entries stay where they are for ever
  }
  scratch = merge(word);
  if (word.size() <= longest_known) {
    const std::lock_guard lock(mutex_);
    if (known_.size() < most_known) known_.emplace(word, scratch);
  }
  return scratch;
}

void BpeTokenizer::encode(std::string_view text, const Sink& sink) const {
  std::vector<int32_t> piece, scratch;
  for_pretokens(text, [&](std::string_view word) {
    const std::vector<int32_t>& ids = ids_of(word, scratch);
    piece.insert(piece.end(), ids.begin(), ids.end());
    if (piece.size() < 4096) return;
    sink(piece);
    piece.clear();
  });
  if (!piece.empty()) sink(piece);
}

std::string BpeTokenizer::decode(int32_t id) const {
  check(id >= 0 && id < vocabulary_size(), "tokenizer: id ", id, " is outside the vocabulary of ",
        vocabulary_size());
  return tokens_[id];
}

}  // namespace tapeformer
