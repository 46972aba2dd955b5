#include "data/lines.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

constexpr std::string_view standard_input = "-";

std::string name_of(const std::string& path) {
  return path == standard_input ? "standard input" : "'" + path + "'";
}

// Reads plain files as they are.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : name_(name_of(path)) {
    if (path == standard_input) {
      file_ = ::gzdopen(::dup(STDIN_FILENO), "rb");
    } else {
      struct stat status {};
      check(::stat(path.c_str(), &status) == 0, "text: cannot open ", name_, ": ",
            std::strerror(errno));
      check(S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode), "text: ", name_,
            " is no file; give the path of a text file, plain or compressed with gzip");
      file_ = ::gzopen(path.c_str(), "rb");
    }
    check(file_ != nullptr, "text: cannot open ", name_, ": ", std::strerror(errno));
    ::gzbuffer(file_, 1 << 17);
  }
  ~GzipFile() { ::gzclose(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Fewer than `bytes` at the end alone.
  size_t read(char* to, size_t bytes) {
    const int got = ::gzread(file_, to, static_cast<unsigned>(bytes));
    int code = 0;
    const char* const reason = ::gzerror(file_, &code);
    check(got >= 0 && (code == Z_OK || code == Z_STREAM_END), "text: cannot read ", name_, ": ",
          code == Z_BUF_ERROR ? "the compressed data is cut off; copy the file again" : reason);
    return static_cast<size_t>(got);
  }

 private:
  std::string name_;
  ::gzFile file_ = nullptr;
};

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.status != CodePoint::Status::valid) return false;
    at += point.bytes;
  }
  return true;
}

}  // namespace

void for_lines(const std::string& path, const std::function<void(std::string_view)>& f) {
  GzipFile file(path);
  std::string line;
  bool first = true;
  const auto finish_line = [&] {
    std::string_view text = line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (first && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    first = false;
    f(text);
    line.clear();
  };
  std::vector<char> piece(1 << 16);
  while (const size_t got = file.read(piece.data(), piece.size())) {
    std::string_view rest(piece.data(), got);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
      line += rest.substr(0, end);
      finish_line();
    }
    line += rest;
  }
  if (!line.empty()) finish_line();
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  for_lines(path, [&](std::string_view line) {
    const bool wide = line.find('\0') != line.npos;
    check(!wide && is_utf8(line), "text: line ", lines.size() + 1, " of ", name_of(path),
          " is not UTF-8; convert the file first, for example: iconv -f ",
          wide ? "utf-16" : "latin1", " -t utf-8");
    lines.emplace_back(line);
  });
  return lines;
}

}  // namespace tapeformer
