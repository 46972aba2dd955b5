// Numbers as text, the same under every locale.
#pragma once

#include <cstdint>
#include <string>

namespace tapeformer {

/// The fewest digits that read back to the same double: 0.1, 1e-05, inf, nan.
std::string shortest(double value);
/// With a fixed number of decimals: fixed(1.8512, 2) is "1.85".
std::string fixed(double value, int decimals);
/// With separators between thousands: 1,234,567.
std::string grouped(int64_t value);
/// Three digits and a unit, for displays: 4.56, 950, 12.3k, 1.20M.
std::string compact(double value);
/// Seconds as m:ss or h:mm:ss.
std::string duration(double seconds);
/// Any text as one word of a shell's command: runs/1, 'my runs/1'.
std::string shell_word(const std::string& text);

}  // namespace tapeformer
