#include "train/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

constexpr const char* temporary_mark = ".tmp-";

[[noreturn]] void fail_with_errno(const char* what, const fs::path& path, int error) {
  fail("file: cannot ", what, " ", path.string(), ": ", std::strerror(error));
}

// A new file beside `path` that no other process or thread uses: model.safetensors.tmp-<pid>-<n>.
int open_temporary(const fs::path& path, fs::path& temporary) {
  static std::atomic<uint64_t> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary = path;
    temporary += temporary_mark + std::to_string(getpid()) + '-' + std::to_string(counter++);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return descriptor;
    if (errno != EEXIST && errno != EINTR) break;
  }
  fail_with_errno("write", path, errno);
}

// Makes a rename in the folder durable. File systems that cannot flush folders say EINVAL.
void flush_folder(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_with_errno("open the folder", folder, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error && error != EINVAL && error != ENOTSUP)
    fail_with_errno("flush the folder", folder, error);
}

bool is_temporary(const std::string& name) {
  const size_t mark = name.rfind(temporary_mark);
  if (mark == std::string::npos || mark == 0) return false;
  const std::string number = name.substr(mark + std::strlen(temporary_mark));
  return number.find('-') != std::string::npos &&
         number.find_first_not_of("0123456789-") == std::string::npos;
}

}  // namespace

void FileWriter::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_with_errno("write", path_, written < 0 ? errno : EIO);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void write_file_atomically(const fs::path& path, const std::function<void(FileWriter&)>& writer) {
  fs::path temporary;
  int descriptor = open_temporary(path, temporary);
  try {
    FileWriter file(descriptor, path);
    writer(file);
    if (::fsync(descriptor) != 0) fail_with_errno("write", path, errno);
    if (::close(std::exchange(descriptor, -1)) != 0) fail_with_errno("write", path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_with_errno("replace", path, errno);
  } catch (...) {
    if (descriptor >= 0) ::close(descriptor);
    ::unlink(temporary.c_str());
    throw;
  }
  flush_folder(path);
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  write_file_atomically(path, [&](FileWriter& file) { file.write(text); });
}

FileReader::FileReader(const fs::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) fail_with_errno("open", path, errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (!error && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (error) fail_with_errno("read", path, error);
  fail("file: ", path.string(), " is ", S_ISDIR(status.st_mode) ? "a folder" : "a pipe or device",
       ", needs a regular file");
}

FileReader::~FileReader() { ::close(descriptor_); }

void FileReader::read(void* data, size_t bytes, uint64_t offset) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count =
        ::pread(descriptor_, next, std::min(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("read", path_, errno);
    check(count > 0, "file: ", path_.string(), " ends at byte ", offset, ", ", bytes,
          " bytes before it should");
    next += count;
    bytes -= static_cast<size_t>(count);
    offset += static_cast<uint64_t>(count);
  }
}

std::string read_file(const fs::path& path) {
  const FileReader file(path);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

void remove_stray_temporaries(const fs::path& folder) {
  std::error_code ignored;  // what cannot be removed does no harm
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (is_temporary(entry.path().filename().string())) fs::remove(entry.path(), ignored);
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "file: cannot make the folder ", folder.string(), ": ", error.message());
}

FolderLock::FolderLock(const fs::path& folder) {
  make_folder(folder);
  descriptor_ = open((folder / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  check(descriptor_ >= 0, folder.string(), ": cannot write here: ", std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  close(descriptor_);
  fail(folder.string(), " is in use by another process; wait for it, or choose another folder");
}

FolderLock::~FolderLock() { close(descriptor_); }

}  // namespace tapeformer
