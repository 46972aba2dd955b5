// Built with a sanitizer, the emulator lets it see what every thread of a kernel does: it reports
// the faults that are planted here.
#include <climits>
#include <cstdio>
#include <filesystem>

#include "core/cuda/launch.cuh"
#include "cuda_emulator/death.h"
#include "cuda_emulator/device_floats.h"
#include "tests/catch.h"

using cuda_emulator::counted;
using cuda_emulator::DeviceFloats;
using cuda_emulator::last_words;
using cuda_emulator::Stream;
using tapeformer::cuda::launch;

namespace {

constexpr int threads = 64;

}  // namespace

#ifdef EMULATOR_ADDRESS_SANITIZER
namespace {

[[gnu::noinline]] float sum(const float* x, unsigned n) {
  float result = 0;
  for (unsigned i = 0; i < n; ++i) result += x[i];
  return result;
}
__global__ void sum_of_own_array(float* y, unsigned n) {
  const float own[8] = {};
  y[threadIdx.x] = sum(own, n);
}

}  // namespace

TEST_CASE("address_sanitizer_watches_a_threads_stack_and_the_hosts_side_of_copies") {
  const Stream stream;
  const DeviceFloats y(threads);
  const auto words_after_summing = [&](unsigned n) {
    return last_words([&] {
      launch<sum_of_own_array>(1, threads, 0, stream.stream, y.data, n);
      cudaStreamSynchronize(stream);
    });
  };
  CHECK(words_after_summing(8).empty());
  CHECK_THAT(words_after_summing(9), ContainsSubstring("stack-buffer-overflow"));
  CHECK_THAT(last_words([&] {
               const std::vector<float> host(threads - 1);
               cudaMemcpyAsync(y.data, host.data(), 4 * threads, cudaMemcpyHostToDevice, stream);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("heap-buffer-overflow"));
}
#endif

#ifdef EMULATOR_UNDEFINED_SANITIZER
namespace {

__global__ void next_of(int i, float* y) { y[threadIdx.x] = static_cast<float>(i + 1); }

}  // namespace

TEST_CASE("undefined_behaviour_sanitizer_watches_kernels") {
  const Stream stream;
  const DeviceFloats y(threads);
  const auto words_after = [&](int i) {
    return last_words([&] {
      launch<next_of>(1, threads, 0, stream.stream, i, y.data);
      cudaStreamSynchronize(stream);
    });
  };
  CHECK(words_after(INT_MAX - 1).empty());
  CHECK_THAT(words_after(INT_MAX), ContainsSubstring("signed integer overflow"));
}
#endif

#ifdef EMULATOR_THREAD_SANITIZER
namespace {

// Every block adds to one number, without an atomic addition.
__global__ void add_from_every_block(float* total) {
  if (threadIdx.x == 0) *total += 1;
}

__global__ void add_neighbour(const float* x, float* y, bool waits) {
  SHARED(float, row, [threads]);
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  row[threadIdx.x] = x[i];
  if (waits) __syncthreads();
  y[i] = row[threadIdx.x] + row[(threadIdx.x + 1) % threads];
}

}  // namespace

// After a fork ThreadSanitizer no longer sees what orders them, so these run in a program of their
// own.
TEST_CASE("planted_race_between_blocks", "[.planted]") {
  const Stream stream;
  const DeviceFloats total({0}, stream);
  launch<add_from_every_block>(2, 32, 0, stream.stream, total.data);
  cudaStreamSynchronize(stream);
}
TEST_CASE("planted_race_within_a_block", "[.planted]") {
  const Stream stream;
  const DeviceFloats x(counted(threads), stream), y(threads);
  launch<add_neighbour>(1, threads, 0, stream.stream, x.data, y.data, false);
  cudaStreamSynchronize(stream);
}
TEST_CASE("no_race_planted", "[.planted]") {
  const Stream stream;
  const DeviceFloats x(counted(3 * threads), stream), y(3 * threads);
  launch<add_neighbour>(3, threads, 0, stream.stream, x.data, y.data, true);
  launch<add_neighbour>(3, threads, 0, stream.stream, y.data, x.data, true);
  CHECK(x.read(stream)[0] == 1 + 2 + 2 + 3);
}

TEST_CASE("thread_sanitizer_finds_races_between_blocks_and_within_one") {
  const auto words = [](const std::string& test) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    FILE* output = popen(("'" + program + "' " + test + " 2>&1").c_str(), "r");
    std::string text(1 << 16, '\0');
    text.resize(fread(text.data(), 1, text.size(), output));
    pclose(output);
    return text;
  };
  CHECK_THAT(words("planted_race_between_blocks"), ContainsSubstring("data race"));
  CHECK_THAT(words("planted_race_within_a_block"), ContainsSubstring("data race"));
  const std::string without = words("no_race_planted");
  CHECK_THAT(without, ContainsSubstring("All tests passed") && !ContainsSubstring("data race"));
}
#endif
