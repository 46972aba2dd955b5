// A byte-pair encoding as JSON, and in GPT-2's two files. Both write a token's bytes as characters:
// a byte that is a visible character of Latin-1 stands for itself, the n-th of the others for the
// character U+0100 + n. So a space is written as U+0120.
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/bpe.h"
#include "data/json_text.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

struct Alphabet {
  std::array<char32_t, 256> character_of;
  std::unordered_map<char32_t, char> byte_of;

  Alphabet() {
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool visible = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      character_of[byte] = visible ? byte : next++;
      byte_of[character_of[byte]] = static_cast<char>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

std::string written(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes)
    text += to_utf8(alphabet().character_of[static_cast<uint8_t>(byte)]);
  return text;
}

// A text with characters beyond the alphabet is no sequence of bytes but stands for itself: a
// token with a meaning of its own.
std::string bytes_of(const std::string& text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const auto found = alphabet().byte_of.find(point.value);
    if (found == alphabet().byte_of.end()) return text;
    bytes += found->second;
    at += point.bytes;
  }
  return bytes;
}

/// Merges as they are written, "left right", to ids.
class MergeReader {
 public:
  explicit MergeReader(const std::vector<std::string>& tokens) {
    for (size_t id = 0; id < tokens.size(); ++id) ids_.emplace(tokens[id], id);
  }
  void read(std::string_view line) {
    const size_t space = line.find(' ');
    check(space != line.npos && space > 0 && space + 1 < line.size() &&
              line.find(' ', space + 1) == line.npos,
          "bpe: merge ", merges.size(), ", '", line.substr(0, 60), "', is not two tokens");
    const std::string left = bytes_of(std::string(line.substr(0, space)));
    const std::string right = bytes_of(std::string(line.substr(space + 1)));
    merges.push_back({id_of(left, line), id_of(right, line), id_of(left + right, line)});
  }
  std::vector<BpeMerge> merges;

 private:
  int32_t id_of(const std::string& token, std::string_view line) const {
    const auto found = ids_.find(token);
    check(found != ids_.end(), "bpe: merge ", merges.size(), ", '", line.substr(0, 60),
          "', needs a token that the vocabulary does not have; do the two belong together?");
    return static_cast<int32_t>(found->second);
  }
  std::unordered_map<std::string_view, size_t> ids_;
};

constexpr size_t largest_json = size_t{16} << 20;

}  // namespace

std::shared_ptr<const BpeTokenizer> BpeTokenizer::from_gpt2(std::string_view vocab_json,
                                                            std::string_view merges_txt) {
  check(is_modest_json(vocab_json, largest_json),
        "bpe: the vocabulary is too long or too deeply nested");
  const auto json = nlohmann::json::parse(vocab_json, nullptr, false);
  check(json.is_object() && !json.empty(),
        "bpe: a vocabulary is a JSON object of tokens and their ids");
  std::vector<std::string> tokens(json.size());
  std::vector<bool> taken(json.size());
  for (const auto& [token, id] : json.items()) {
    check(id.is_number_unsigned() && id.get<uint64_t>() < tokens.size(), "bpe: the token '",
          token.substr(0, 40), "' has the id ", id.dump(), "; ids run from 0 to ",
          tokens.size() - 1, ", each once");
    const auto at = id.get<size_t>();
    check(!taken[at], "bpe: two tokens have the id ", at);
    taken[at] = true;
    tokens[at] = bytes_of(token);
  }
  MergeReader reader(tokens);
  for (size_t begin = 0; begin < merges_txt.size();) {
    const size_t end = std::min(merges_txt.find('\n', begin), merges_txt.size());
    std::string_view line = merges_txt.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool heading = begin == 0 && line.starts_with("#version");
    if (!line.empty() && !heading) reader.read(line);
    begin = end + 1;
  }
  return std::make_shared<BpeTokenizer>(tokens, reader.merges);
}

std::shared_ptr<const BpeTokenizer> BpeTokenizer::from_bpe_json(std::string_view text) {
  check(is_modest_json(text, largest_json), "bpe: its JSON is too long or too deeply nested");
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto strings = [&](const char* key) {
    check(json.is_object() && json.contains(key) && json[key].is_array(),
          "bpe: its JSON needs an array '", key, "'");
    std::vector<std::string> result;
    for (const auto& entry : json[key]) {
      check(entry.is_string(), "bpe: '", key, "' holds ", entry.dump().substr(0, 40),
            ", which is no string");
      result.push_back(entry);
    }
    return result;
  };
  std::vector<std::string> tokens = strings("vocabulary");
  for (std::string& token : tokens) token = bytes_of(token);
  MergeReader reader(tokens);
  for (const std::string& merge : strings("merges")) reader.read(merge);
  return std::make_shared<BpeTokenizer>(tokens, reader.merges);
}

std::string BpeTokenizer::to_json() const {
  std::vector<std::string> vocabulary, merges;
  for (const std::string& token : tokens_) vocabulary.push_back(written(token));
  for (const BpeMerge& merge : merges_)
    merges.push_back(written(tokens_[merge.left]) + " " + written(tokens_[merge.right]));
  return nlohmann::ordered_json{{"name", name()}, {"vocabulary", vocabulary}, {"merges", merges}}
      .dump();
}

}  // namespace tapeformer
