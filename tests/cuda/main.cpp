// Runs the tests of the CUDA kernels. Where all of them ran, every kernel must have: the list is
// what the sources of the backend define.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "cuda_emulator/block.h"

namespace {

// Kernels, and functions of an element that a kernel applies.
std::set<std::string> kernels_defined() {
  const std::regex kernel(R"(__global__ void[^;{]*?\b(\w+_kernel)\()"),
      each(R"(struct (\w+) : Each)");
  std::set<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(TAPEFORMER_SOURCE_DIR "/core/cuda")) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const std::regex& pattern : {kernel, each})
      for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end;
           ++match)
        names.insert((*match)[1]);
  }
  return names;
}

[[maybe_unused]] int kernels_not_run() {
  int missing = 0;
  const std::set<std::string> defined = kernels_defined();
  for (const std::string& name : defined)
    if (!cuda_emulator::kernels_run().count(name)) {
      std::printf("FAILED: no test has run the kernel %s\n", name.c_str());
      ++missing;
    }
  if (defined.size() < 20)
    std::printf("FAILED: the list of kernels is not read from the sources\n");
  return missing + (defined.size() < 20);
}

// For scripts/kernel_report.sh, in the file that the environment names.
void write_launches() {
  const char* path = std::getenv("TAPEFORMER_LAUNCHES");
  if (!path) return;
  std::ofstream file(path);
  for (const auto& [kernel, bytes] : cuda_emulator::dynamic_shared_bytes())
    file << bytes << ' ' << kernel << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  write_launches();
  if (failed || argc > 1) return failed;
#ifdef EMULATOR_THREAD_SANITIZER
  return 0;  // built by clang, which does not name what a kernel is made of
#else
  return kernels_not_run() != 0;
#endif
}
