#include "data/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/check.h"

namespace tapeformer {
namespace {

struct FileHandle {
  int descriptor;
  ~FileHandle() { ::close(descriptor); }
};

std::string read_to_end(int descriptor, size_t expected_bytes, const std::string& path) {
  std::string content;
  content.reserve(expected_bytes);
  char piece[1 << 16];
  for (;;) {
    const ssize_t got = ::read(descriptor, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, "text: cannot read '", path, "': ", std::strerror(errno));
    if (got == 0) return content;
    content.append(piece, static_cast<size_t>(got));
  }
}

/// 64 bits of FNV-1a, over words of 8 bytes instead of single ones, with a shift that brings the
/// high bits of a product down to where the next can spread them.
uint64_t hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t bytes = text.size() < 8 ? text.size() : 8;
    std::memcpy(&word, text.data(), bytes);
    hash = (hash ^ word) * 0x100000001B3;
    hash ^= hash >> 32;
    text.remove_prefix(bytes);
  }
  return hash;
}

}  // namespace

Text::Text(std::string content, std::string name) : name_(std::move(name)) {
  check(!content.empty(), "text: '", name_, "' is empty; give a text to train on");
  content_ = std::make_shared<const std::string>(std::move(content));
}

Text Text::from_file(const std::string& path) {
  const FileHandle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  check(file.descriptor >= 0, "text: cannot open '", path, "': ", std::strerror(errno),
        errno == ENOENT ? "; is the path right, seen from the current directory?" : "");
  struct stat status {};
  check(::fstat(file.descriptor, &status) == 0, "text: cannot read '", path,
        "': ", std::strerror(errno));
  check(!S_ISDIR(status.st_mode), "text: '", path,
        "' is a directory; give the path of a text file");
  check(!S_ISCHR(status.st_mode), "text: '", path,
        "' is a device, which may have no end; give a file or a pipe");
  const size_t bytes = S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) : 0;
  std::string content = read_to_end(file.descriptor, bytes, path);
  check(!content.starts_with("\x1F\x8B"), "text: '", path,  // RFC 1952, section 2.3.1
        "' is compressed with gzip; decompress it first: gunzip -k FILE");
  if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);  // a byte order mark is no text
  return Text(std::move(content), path);
}

std::string Text::fingerprint() const {
  char text[64];
  std::snprintf(text, sizeof text, "%zu-%016llx", content_->size(),
                static_cast<unsigned long long>(hash(*content_)));
  return text;
}

}  // namespace tapeformer
