// A table of named things that a user's program extends with one call.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace tapeformer {

template <class T>
class Registry {
 public:
  /// `kind` names the things in errors: "norm", "placement".
  Registry(const char* kind, std::map<std::string, T> entries)
      : kind_(kind), entries_(std::move(entries)) {}

  T find(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    check(found != entries_.end(), "there is no ", kind_, " '", name, "'; known are ", keys());
    return found->second;
  }
  void add(const std::string& name, T entry) {
    std::lock_guard lock(mutex_);
    check(entries_.emplace(name, std::move(entry)).second, "the ", kind_, " '", name,
          "' is registered already; choose another name");
  }
  /// Returns what stood under the name before.
  T replace(const std::string& name, T entry) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    check(found != entries_.end(), "there is no ", kind_, " '", name, "' to replace");
    return std::exchange(found->second, std::move(entry));
  }
  std::vector<std::string> names() const {
    std::lock_guard lock(mutex_);
    return keys();
  }

 private:
  std::vector<std::string> keys() const {
    std::vector<std::string> result;
    for (const auto& [name, entry] : entries_) result.push_back(name);
    return result;
  }
  const char* kind_;
  std::map<std::string, T> entries_;
  mutable std::mutex mutex_;
};

}  // namespace tapeformer
