// A text to train on: the content of a file, or a string that a program made.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tapeformer {

/// A cheap handle on bytes that nobody changes. They live as long as a handle does.
class Text {
 public:
  /// `name` stands in messages for where the text came from.
  Text(std::string content, std::string name);
  /// Reads the file or pipe to its end, but for a byte order mark that begins it: a copy, so that
  /// whoever changes or shortens the file later disturbs no training. Throws when it is missing, a
  /// folder or device, unreadable, empty or compressed with gzip.
  static Text from_file(const std::string& path);

  std::string_view view() const { return *content_; }
  const std::string& name() const { return name_; }
  /// Size and hash of the content, "1115394-90a3c1...": tells whether a resumed run has its text.
  std::string fingerprint() const;

 private:
  std::shared_ptr<const std::string> content_;
  std::string name_;
};

}  // namespace tapeformer
