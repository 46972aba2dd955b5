// The lines of a text file, plain or compressed with gzip, one after the other.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tapeformer {

/// Calls f(line) for each line, without its end ("\n" or "\r\n") and without the byte order mark
/// that may begin the file; a last line needs no end. Holds one line at a time. The path "-" is
/// standard input. Calls `on_pause` where no more is there to be read for now, as in a pipe. Throws
/// for a file that is missing, no file, or damaged.
void for_lines(const std::string& path, const std::function<void(std::string_view line)>& f,
               const std::function<void()>& on_pause = {});

/// All lines. Throws also where a line is not UTF-8 or holds a zero byte, naming it and the cure.
std::vector<std::string> read_lines(const std::string& path);

/// The same for input without an end, as it comes: calls f with the next `most` lines, or with the
/// fewer that are there when the input pauses, ends, or goes on with what makes this throw.
void for_blocks_of_lines(const std::string& path, size_t most,
                         const std::function<void(const std::vector<std::string>&)>& f);

}  // namespace tapeformer
