// Byte-pair encoding (Sennrich et al. 2016) over bytes (Radford et al. 2019): a word is at first
// its bytes, and pairs of neighbours merge by a learnt order. Every byte is a token, so no text is
// unknown, and decode(encode(text)) is the text, whatever its bytes.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"

namespace tapeformer {

/// Two tokens and what they become.
struct BpeMerge {
  int32_t left = 0, right = 0, result = 0;
};

class BpeTokenizer : public Tokenizer {
 public:
  /// `tokens` by id, as bytes: each of the 256 bytes is one of them. `merges` in the order in which
  /// they act. Tokens that are neither bytes nor results of merges are never encoded, only decoded.
  /// Throws where a token is missing or appears twice, or a merge does not fit.
  BpeTokenizer(std::vector<std::string> tokens, std::vector<BpeMerge> merges);
  /// GPT-2's two files: {"token": id} and lines of two tokens, in its notation for bytes.
  static std::shared_ptr<const BpeTokenizer> from_gpt2(std::string_view vocab_json,
                                                       std::string_view merges_txt);
  /// What to_json() wrote.
  static std::shared_ptr<const BpeTokenizer> from_bpe_json(std::string_view json);

  using Tokenizer::decode;
  using Tokenizer::encode;
  /// Cuts the text into words (pretokens.h), and remembers the ids of up to 65,536 of them. Safe to
  /// call from several threads.
  void encode(std::string_view text, const Sink& sink) const override;
  std::string decode(int32_t id) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string name() const override { return "bpe"; }
  std::string to_json() const override;

  const std::vector<BpeMerge>& merges() const { return merges_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  // Those that are remembered, or else in `scratch`.
  const std::vector<int32_t>& ids_of(std::string_view word, std::vector<int32_t>& scratch) const;
  std::vector<int32_t> merge(std::string_view word) const;
  int32_t rank_of(int32_t left, int32_t right) const;  // -1: they do not merge

  std::vector<std::string> tokens_;
  std::vector<BpeMerge> merges_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, int32_t> ranks_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> known_;
};

/// Learns merges from texts. Keeps a count for each distinct word, and no text.
class BpeTrainer {
 public:
  /// Counts the words of a text. Words of more than 256 bytes do not count: they are no words.
  void add(std::string_view text);

  /// The most frequent pair merges first; among equals that of the lower ids, so that a text gives
  /// one tokenizer. Fewer merges where no pair occurs twice any more. Ids: the bytes by value, then
  /// the results in the order of their merges. Throws when nothing was added.
  std::shared_ptr<const BpeTokenizer> train(int64_t merges) const;

 private:
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace tapeformer
