// Runs the tests of the CUDA kernels on a GPU; the emulator's main is main.cpp.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>

#include "core/device.h"

int main(int argc, char** argv) {
  if (const std::string why = tapeformer::why_no_cuda(); !why.empty()) {
    std::fprintf(stderr, "The tests of the CUDA kernels need a GPU: %s.\n", why.c_str());
    return 1;
  }
  return Catch::Session().run(argc, argv);
}
