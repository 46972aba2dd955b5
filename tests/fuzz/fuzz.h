// What the fuzz targets share: seeds, files in memory, and readers that may only throw Error.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"

/// Inputs to begin with, defined by each target.
extern const std::vector<std::string> seeds;

/// libFuzzer calls this first. Writes the seeds into the folder that is the last argument, where it
/// is empty. Marked as used: nothing here calls it, so that the compiler would leave it out.
extern "C" [[gnu::used]] inline int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::filesystem::path folder = (*argv)[*argc - 1];
  if (*argc < 2 || !is_directory(folder) || !is_empty(folder)) return 0;
  for (size_t i = 0; i < seeds.size(); ++i)
    std::ofstream(folder / ("seed" + std::to_string(i)), std::ios::binary) << seeds[i];
  return 0;
}

namespace tapeformer {

/// Calls f. An Error is what a reader says of a bad input; anything else ends the program.
template <class F>
void only_errors(const F& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

/// A promise that does not depend on what was read.
inline void promise(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

/// The path of a regular file, in memory, with these bytes.
inline std::string file_of(std::string_view bytes) {
  static const int descriptor = memfd_create("fuzz", 0);
  promise(ftruncate(descriptor, 0) == 0, "a file can be emptied");
  promise(pwrite(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "a file can be written");
  return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace tapeformer

/// Defines the target by what it does with an input.
#define FUZZ_TARGET(input)                                                  \
  static void read_input(std::string_view input);                           \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    read_input({reinterpret_cast<const char*>(data), size});                \
    return 0;                                                               \
  }                                                                         \
  static void read_input(std::string_view input)
