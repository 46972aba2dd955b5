// The lines of a text, plain or compressed.
#include <zlib.h>

#include <algorithm>

#include "data/lines.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

static std::string gzip(std::string_view text) {
  z_stream stream{};
  constexpr int largest_window = 15, as_gzip = 16;
  deflateInit2(&stream, 1, Z_DEFLATED, largest_window + as_gzip, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<unsigned>(text.size());
  stream.next_out = reinterpret_cast<unsigned char*>(packed.data());
  stream.avail_out = static_cast<unsigned>(packed.size());
  promise(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib packs");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

const std::vector<std::string> seeds = {"one\ntwo\r\n\nthree", "\xEF\xBB\xBF\n", "\xff\n",
                                        gzip("one\ntwo\n"), gzip("one\n") + gzip("two") + "rest"};

static std::vector<std::string> lines_of(std::string_view bytes) {
  std::vector<std::string> lines;
  for_lines(file_of(bytes), [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

FUZZ_TARGET(input) {
  only_errors([&] { lines_of(input); });
  only_errors([&] { read_lines(file_of(input)); });
  const bool packed = input.starts_with("\x1f\x8b");
  if (packed) return;
  const std::vector<std::string> lines = lines_of(input);
  promise(lines_of(gzip(input)) == lines, "a compressed text has the lines of the text");
  const auto ends = std::count(input.begin(), input.end(), '\n');
  promise(static_cast<int64_t>(lines.size()) == ends + (!input.empty() && !input.ends_with('\n')),
          "each end of a line ends a line");
}
