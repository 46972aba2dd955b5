// A text to train on: a memory-mapped file, or a string that a program made.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tapeformer {

/// A cheap handle on bytes that nobody changes. The file or string lives as long as a handle does.
class Text {
 public:
  /// `name` stands in messages for where the text came from.
  Text(std::string content, std::string name);
  /// Maps the file; pipes and devices are read to their end. Throws when it is missing, no file,
  /// unreadable or empty. The file must not be shortened while in use.
  static Text from_file(const std::string& path);

  std::string_view view() const { return view_; }
  const std::string& name() const { return name_; }
  /// Size and hash of the content, "1115394-90a3c1...": tells whether a resumed run has its text.
  std::string fingerprint() const;

 private:
  Text(std::shared_ptr<const void> owner, std::string_view view, std::string name)
      : owner_(std::move(owner)), view_(view), name_(std::move(name)) {}

  std::shared_ptr<const void> owner_;
  std::string_view view_;
  std::string name_;
};

}  // namespace tapeformer
