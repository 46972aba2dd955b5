#include "data/lines.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "data/utf8.h"

namespace tapeformer {
namespace {

constexpr std::string_view standard_input = "-";

std::string name_of(const std::string& path) {
  return path == standard_input ? "standard input" : "'" + path + "'";
}

// A file or standard input as it comes, decompressed where it is gzip.
class Input {
 public:
  explicit Input(const std::string& path) : name_(name_of(path)) {
    if (path == standard_input) {
      file_.descriptor = ::dup(STDIN_FILENO);
    } else {
      struct stat status {};
      const bool there = ::stat(path.c_str(), &status) == 0;
      check(there, "text: cannot open ", name_, ": ", std::strerror(errno));
      check(S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode), "text: ", name_,
            " is no file; give the path of a text file, plain or compressed with gzip");
      file_.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    }
    check(file_.descriptor >= 0, "text: cannot open ", name_, ": ", std::strerror(errno));
    packed_.next_in = buffer_;
    const auto has = [&](unsigned place, unsigned char byte) {
      while (packed_.avail_in <= place && fill()) continue;
      return packed_.avail_in > place && buffer_[place] == byte;
    };
    if (!has(0, 0x1f) || !has(1, 0x8b)) return;  // RFC 1952, section 2.3.1
    constexpr int largest_window = 15, gzip_alone = 16;
    check(::inflateInit2(&packed_, largest_window + gzip_alone) == Z_OK, "text: no memory to read ",
          name_);
    gzip_ = true;
    ::inflateGetHeader(&packed_, &header_);
  }
  ~Input() {
    if (gzip_) ::inflateEnd(&packed_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// What is there, waiting for at least one byte; 0 at the end.
  size_t read(char* to, size_t bytes) {
    if (gzip_) return read_gzip(to, bytes);
    if (packed_.avail_in == 0 && !fill()) return 0;
    const size_t got = std::min<size_t>(bytes, packed_.avail_in);
    std::memcpy(to, packed_.next_in, got);
    packed_.next_in += got;
    packed_.avail_in -= static_cast<unsigned>(got);
    return got;
  }
  /// Whether nothing comes for a moment.
  bool pauses() const {
    constexpr int moment = 50;  // milliseconds: whoever writes at full speed is not interrupted
    pollfd file{file_.descriptor, POLLIN, 0};
    if (packed_.avail_in > 0) return false;
    int ready;
    do ready = ::poll(&file, 1, moment);
    while (ready < 0 && errno == EINTR);
    return ready == 0;
  }

 private:
  // Adds to the bytes that are read and not used; false at the end of the file.
  bool fill() {
    std::memmove(buffer_, packed_.next_in, packed_.avail_in);
    packed_.next_in = buffer_;
    ssize_t got;
    do
      got = ::read(file_.descriptor, buffer_ + packed_.avail_in, sizeof buffer_ - packed_.avail_in);
    while (got < 0 && errno == EINTR);
    check(got >= 0, "text: cannot read ", name_, ": ", std::strerror(errno));
    packed_.avail_in += static_cast<unsigned>(got);
    return got > 0;
  }

  // A gzip file is one member or several, one after the other; what follows them does not count.
  size_t read_gzip(char* to, size_t bytes) {
    packed_.next_out = reinterpret_cast<unsigned char*>(to);
    packed_.avail_out = static_cast<unsigned>(bytes);
    while (packed_.avail_out == bytes) {
      const int code = ::inflate(&packed_, Z_NO_FLUSH);
      // Nothing of another member, or what follows is none (zlib: -1).
      const bool between = members_ > 0 && (header_.done < 0 || packed_.total_in < 2);
      if (code == Z_STREAM_END) {
        ++members_;
        ::inflateReset(&packed_);
        ::inflateGetHeader(&packed_, &header_);
      } else if (code == Z_BUF_ERROR) {  // it needs more
        if (fill()) continue;
        check(between, "text: cannot read ", name_,
              ": the compressed data is cut off; copy the file again");
        return 0;
      } else {
        if (code == Z_DATA_ERROR && between) return 0;
        check(code == Z_OK, "text: cannot read ", name_, ": ",
              packed_.msg ? packed_.msg : "the compressed data is damaged");
      }
    }
    return bytes - packed_.avail_out;
  }

  std::string name_;
  struct File {
    int descriptor = -1;
    ~File() {
      if (descriptor >= 0) ::close(descriptor);
    }
  } file_;
  unsigned char buffer_[1 << 16];
  z_stream packed_{};  // its input: the bytes of the file that are read and not used
  gz_header header_{};
  bool gzip_ = false;
  int64_t members_ = 0;  // that have ended
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

void for_lines(const std::string& path, const std::function<void(std::string_view)>& f,
               const std::function<void()>& on_pause) {
  Input input(path);
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
  while (const size_t got = input.read(piece.data(), piece.size())) {
    std::string_view rest(piece.data(), got);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
      line += rest.substr(0, end);
      finish_line();
    }
    line += rest;
    if (on_pause && input.pauses()) on_pause();
  }
  if (!line.empty()) finish_line();
}

namespace {

std::string checked(std::string_view line, size_t number, const std::string& path) {
  const bool wide = line.find('\0') != line.npos;
  check(!wide && is_utf8(line), "text: line ", number, " of ", name_of(path),
        " is not UTF-8; convert the file first, for example: iconv -f ", wide ? "utf-16" : "latin1",
        " -t utf-8");
  return std::string(line);
}

}  // namespace

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  for_lines(path,
            [&](std::string_view line) { lines.push_back(checked(line, lines.size() + 1, path)); });
  return lines;
}

void for_blocks_of_lines(const std::string& path, size_t most,
                         const std::function<void(const std::vector<std::string>&)>& f) {
  std::vector<std::string> block;
  size_t given = 0;
  const auto give = [&] {
    if (block.empty()) return;
    const std::vector<std::string> now = std::exchange(block, {});
    given += now.size();
    f(now);
  };
  const auto take = [&](std::string_view line) {
    block.push_back(checked(line, given + block.size() + 1, path));
    if (block.size() == most) give();
  };
  try {
    for_lines(path, take, give);
  } catch (const Error&) {  // the lines before what cannot be read are good
    give();
    throw;
  }
  give();
}

}  // namespace tapeformer
