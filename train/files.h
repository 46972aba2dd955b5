// Files that are either written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tapeformer {

/// Bytes into a file under construction. Each call throws Error when the system refuses (disk
/// full), naming the file.
class FileWriter {
 public:
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

 private:
  friend void write_file_atomically(const std::filesystem::path&,
                                    const std::function<void(FileWriter&)>&);
  FileWriter(int descriptor, const std::filesystem::path& path)
      : descriptor_(descriptor), path_(path) {}
  int descriptor_;
  const std::filesystem::path& path_;
};

/// Writes a temporary file beside `path`, flushes it to the disk and renames it to `path`; then
/// flushes the folder. Whoever reads `path` sees the old content or the new, never a part, also
/// after a crash. When something fails (or the writer throws), the temporary file is removed and
/// the old file stays.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(FileWriter&)>& writer);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// A regular file that is open for reading.
class FileReader {
 public:
  /// Throws Error, with the reason, when the file cannot be opened or is a folder, pipe or device.
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// In bytes, when it was opened.
  uint64_t size() const { return size_; }
  /// Reads exactly `bytes` bytes from `offset` on. Throws Error when there are fewer.
  void read(void* data, size_t bytes, uint64_t offset) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// The whole content of a file.
std::string read_file(const std::filesystem::path& path);

/// Creates a folder and those above it, where they are missing.
void make_folder(const std::filesystem::path& folder);

/// Holds a folder for this process while it lives, by an advisory lock on the file `.lock` in it.
class FolderLock {
 public:
  /// Creates the folder where it is missing. Throws Error when another process holds it, or when it
  /// cannot be written to.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

/// Removes temporary files of write_file_atomically that a killed process left in a folder.
void remove_stray_temporaries(const std::filesystem::path& folder);

}  // namespace tapeformer
