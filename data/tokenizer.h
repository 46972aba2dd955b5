// Text to token ids and back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tapeformer {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Gives the ids of `text` to `sink` in order, in pieces, so that a large text needs no large
  /// array. Throws for what the vocabulary cannot express.
  using Sink = std::function<void(std::span<const int32_t>)>;
  virtual void encode(std::string_view text, const Sink& sink) const = 0;
  std::vector<int32_t> encode(std::string_view text) const;

  /// The text of one id. It may be a part of a character: see Utf8Stream. Throws for ids outside
  /// the vocabulary.
  virtual std::string decode(int32_t id) const = 0;
  std::string decode(std::span<const int32_t> ids) const;

  virtual int64_t vocabulary_size() const = 0;
  virtual std::string name() const = 0;

  /// All that is needed to make it again: what a checkpoint carries.
  virtual std::string to_json() const = 0;
  static std::shared_ptr<const Tokenizer> from_json(std::string_view json);
};

/// One id per byte: any text or file, nothing to learn, 256 ids.
class ByteTokenizer : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;
  void encode(std::string_view text, const Sink& sink) const override;
  std::string decode(int32_t id) const override;
  int64_t vocabulary_size() const override { return 256; }
  std::string name() const override { return "byte"; }
  std::string to_json() const override;
};

/// One id per distinct character (code point) of a text, in the order of the code points.
class CharacterTokenizer : public Tokenizer {
 public:
  /// Throws when `text` is not UTF-8.
  explicit CharacterTokenizer(std::string_view text);
  using Tokenizer::decode;
  using Tokenizer::encode;
  void encode(std::string_view text, const Sink& sink) const override;
  std::string decode(int32_t id) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(characters_.size()); }
  std::string name() const override { return "character"; }
  std::string to_json() const override;

 private:
  int32_t find(char32_t character) const;  // -1 where unknown

  std::vector<char32_t> characters_;  // by id
  std::vector<int32_t> ascii_;        // ids of the first 128 code points, -1 where unknown
  std::unordered_map<char32_t, int32_t> others_;
};

/// "byte", "character", or a file for load_tokenizer(). Throws for a name that is none of these.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text);
/// Reads what to_json() wrote, or GPT-2's vocab.json with the merges.txt beside it; a folder that
/// holds these two will do.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

}  // namespace tapeformer
