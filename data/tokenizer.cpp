#include "data/tokenizer.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/bpe.h"
#include "data/json_text.h"
#include "data/text.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

/// Collects ids and hands them on in pieces.
class Pieces {
 public:
  explicit Pieces(const Tokenizer::Sink& sink) : sink_(sink) {}
  void add(int32_t id) {
    ids_[count_++] = id;
    if (count_ == ids_.size()) flush();
  }
  void flush() {
    if (count_) sink_({ids_.data(), count_});
    count_ = 0;
  }

 private:
  const Tokenizer::Sink& sink_;
  std::array<int32_t, 4096> ids_;
  size_t count_ = 0;
};

/// Calls f(character, its number counted from 1) for each character. Throws where `text` is not
/// UTF-8.
template <class F>
void for_characters(std::string_view text, const F& f) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.status != CodePoint::Status::valid) [[unlikely]] {
      char byte[8];
      std::snprintf(byte, sizeof byte, "0x%02X", static_cast<uint8_t>(text[at]));
      fail("tokenizer: the text is not valid UTF-8 at byte ", at, " (", byte,
           "); convert it, or take the tokenizer byte (train_gpt --tokenizer byte), which reads "
           "any file");
    }
    f(point.value, ++number);
    at += point.bytes;
  }
}

void check_id(int32_t id, int64_t vocabulary_size) {
  check(id >= 0 && id < vocabulary_size, "tokenizer: id ", id, " is outside the vocabulary of ",
        vocabulary_size);
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, [&](std::span<const int32_t> piece) {
    ids.insert(ids.end(), piece.begin(), piece.end());
  });
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += decode(id);
  return text;
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view text) {
  // Room for every code point as an escape.
  check(is_modest_json(text, size_t{16} << 20),
        "tokenizer: its JSON is too long or too deeply nested");
  const auto json = nlohmann::json::parse(text, nullptr, false);
  check(json.is_object() && json.contains("name") && json["name"].is_string(),
        "tokenizer: expected a JSON object with a name, got '", text.substr(0, 60), "'");
  const std::string name = json["name"];
  if (name == "byte") return std::make_shared<ByteTokenizer>();
  if (name == "bpe") return BpeTokenizer::from_bpe_json(text);
  check(name == "character", "tokenizer: no tokenizer is called '", name,
        "'; known are byte, character and bpe");
  check(json.contains("characters") && json["characters"].is_string(),
        "tokenizer: a character tokenizer's JSON needs its characters");
  return std::make_shared<CharacterTokenizer>(json["characters"].get<std::string>());
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text) {
  if (name == "byte") return std::make_shared<ByteTokenizer>();
  if (name == "character") return std::make_shared<CharacterTokenizer>(text);
  const std::string path(name);
  check(std::filesystem::exists(path), "tokenizer: no tokenizer is called '", name,
        "'; known are byte and character, and there is no file of this name");
  return load_tokenizer(path);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "vocab.json" : fs::path(path);
  const Text text = Text::from_file(file.string());
  try {
    if (file.filename() != "vocab.json") return Tokenizer::from_json(text.view());
    const Text merges = Text::from_file((file.parent_path() / "merges.txt").string());
    return BpeTokenizer::from_gpt2(text.view(), merges.view());
  } catch (const Error& error) {
    fail(file.string(), ": ", error.what());
  }
}

// ---- Bytes.

void ByteTokenizer::encode(std::string_view text, const Sink& sink) const {
  Pieces pieces(sink);
  for (const char byte : text) pieces.add(static_cast<uint8_t>(byte));
  pieces.flush();
}

std::string ByteTokenizer::decode(int32_t id) const {
  check_id(id, 256);
  return {static_cast<char>(id)};
}

std::string ByteTokenizer::to_json() const { return R"({"name":"byte"})"; }

// ---- Characters.

CharacterTokenizer::CharacterTokenizer(std::string_view text) : ascii_(128, -1) {
  std::vector<bool> seen;
  for_characters(text, [&](char32_t character, int64_t) {
    if (character >= seen.size()) seen.resize(character + 1);
    seen[character] = true;
  });
  for (char32_t character = 0; character < seen.size(); ++character) {
    if (!seen[character]) continue;
    const auto id = static_cast<int32_t>(characters_.size());
    characters_.push_back(character);
    if (character < 128)
      ascii_[character] = id;
    else
      others_[character] = id;
  }
}

int32_t CharacterTokenizer::find(char32_t character) const {
  if (character < 128) return ascii_[character];
  const auto found = others_.find(character);
  return found == others_.end() ? -1 : found->second;
}

void CharacterTokenizer::encode(std::string_view text, const Sink& sink) const {
  Pieces pieces(sink);
  for_characters(text, [&](char32_t character, int64_t number) {
    const int32_t id = find(character);
    if (id < 0) [[unlikely]]
      fail("tokenizer: unknown character ", describe(character), ", character ", number,
           " of the text; use only characters of the training text, or train with the tokenizer "
           "byte (train_gpt --tokenizer byte)");
    pieces.add(id);
  });
  pieces.flush();
}

std::string CharacterTokenizer::decode(int32_t id) const {
  check_id(id, vocabulary_size());
  return to_utf8(characters_[id]);
}

std::string CharacterTokenizer::to_json() const {
  std::string characters;
  for (const char32_t character : characters_) characters += to_utf8(character);
  return nlohmann::json{{"name", name()}, {"characters", characters}}.dump();
}

}  // namespace tapeformer
