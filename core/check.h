// How the library reports a mistake: an exception that says the operation, what it expected and
// what came, and where possible the cure. The library itself never prints and never exits.
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapeformer {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {
template <class T>
void write_part(std::ostream& out, const T& part) {
  out << part;
}
template <class T>
void write_part(std::ostream& out, const std::vector<T>& parts) {
  out << '[';
  for (size_t i = 0; i < parts.size(); ++i) out << (i ? ", " : "") << parts[i];
  out << ']';
}
}  // namespace detail

/// Throws Error with the parts written one after the other.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  std::ostringstream message;
  message.imbue(std::locale::classic());
  (detail::write_part(message, parts), ...);
  throw Error(message.str());
}

/// Throws Error unless `condition` holds. The parts are formatted only then.
template <class... Parts>
inline void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(parts...);
}

}  // namespace tapeformer
