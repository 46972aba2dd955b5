// Streams of text whose characters arrive in parts.
#include "data/utf8.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

const std::vector<std::string> seeds = {"a\xc3\xa9z", "\xf0\x9f\xa6\x8a\xe6\x97",
                                        "\xed\xa0\x80\xff",
                                        std::string("\x01\0\xf4\x8f\xbf\xbf", 6)};

FUZZ_TARGET(input) {
  Utf8Stream whole, parts;
  const std::string expected = whole.push(input) + whole.finish();
  std::string text;
  for (size_t at = 0; at < input.size();) {
    const size_t bytes = 1 + static_cast<uint8_t>(input[at]) % 3;
    text += parts.push(input.substr(at, bytes));
    at += bytes;
  }
  text += parts.finish();
  promise(text == expected, "how a text is cut changes nothing");
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    promise(point.status == CodePoint::Status::valid, "a stream is valid UTF-8");
    promise(to_utf8(point.value) == text.substr(at, point.bytes), "code points are written back");
    describe(point.value);
    at += point.bytes;
  }
}
