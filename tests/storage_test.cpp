// Memory under several threads, and where there is no more of it.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>

#include "core/random.h"
#include "core/tensor.h"
#include "tests/catch.h"

using namespace tapeformer;

#ifdef __has_feature
#define CLANG_SANITIZES(name) __has_feature(name)
#else
#define CLANG_SANITIZES(name) 0
#endif

namespace {

// A sanitizer's own address space is beyond any limit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    CLANG_SANITIZES(address_sanitizer) || CLANG_SANITIZES(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// Takes memory of many sizes, writes its own number into it, and finds it there later.
bool keeps_its_memory_to_itself(int32_t number) {
  Generator generator({static_cast<uint64_t>(number), Purpose::batches, 0, 0});
  std::vector<Tensor> held(16);
  for (int round = 0; round < 2000; ++round) {
    Tensor& place = held[static_cast<size_t>(generator.uniform() * 16)];
    if (place.defined())
      for (int64_t i = 0; i < place.numel(); i += 97)
        if (place.data<int32_t>()[i] != number) return false;
    const double size = std::pow(2, 18 * generator.uniform());  // heap blocks and mappings
    place = Tensor::empty({static_cast<int64_t>(size)}, DType::i32);
    for (int64_t i = 0; i < place.numel(); i += 97) place.data<int32_t>()[i] = number;
  }
  return true;
}

}  // namespace

TEST_CASE("threads_that_share_the_allocator_never_share_memory") {
  const size_t baseline = memory_stats().live_bytes;
  std::atomic<bool> done = false;
  std::atomic<int> kept = 0;
  std::thread cleaner([&] {
    while (!done) {
      release_cached_memory();
      reset_peak_memory();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int32_t number = 1; number <= 4; ++number)
    threads.emplace_back([&kept, number] { kept += keeps_its_memory_to_itself(number); });
  for (std::thread& thread : threads) thread.join();
  done = true;
  cleaner.join();
  CHECK(kept == 4);
  CHECK(memory_stats().live_bytes == baseline);
}

TEST_CASE("memory_that_one_thread_takes_another_may_give_back") {
  const size_t baseline = memory_stats().live_bytes;
  std::vector<Tensor> made;
  std::thread([&] {
    for (int64_t size = 1; size < 1000; ++size)
      made.push_back(Tensor::full({size}, static_cast<double>(size)));
  }).join();
  for (const Tensor& x : made) CHECK(x.data<float>()[0] == static_cast<float>(x.numel()));
  made.clear();
  CHECK(memory_stats().live_bytes == baseline);
}

TEST_CASE("memory_that_the_system_refuses_is_an_error_with_both_numbers") {
  if (sanitized) return;
  // A child may take no address space beyond what it has and 64 MB.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string message;
    std::vector<Tensor> held;
    try {
      { const Tensor cached = Tensor::empty({8 << 20}); }
      std::ifstream statm("/proc/self/statm");
      rlim_t pages = 0;
      statm >> pages;
      const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (64 << 20);
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_AS, &limit);
      // Needs the cached 32 MB, which are of another size.
      held.push_back(Tensor::empty({20 << 20}));
      for (;;) held.push_back(Tensor::empty({1 << 20}));
    } catch (const Error& error) {
      message = std::to_string(held.size()) + " tensors, " + error.what();
    } catch (...) {
      message = "another error";
    }
    const ssize_t written = write(ends[1], message.data(), message.size());
    _exit(written > 0 ? 0 : 1);
  }
  close(ends[1]);
  char text[1000];
  const ssize_t size = read(ends[0], text, sizeof text);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  const std::string message(text, size > 0 ? static_cast<size_t>(size) : 0);
  long long tensors = 0, asked = 0, in_use = 0;
  CAPTURE(message);
  REQUIRE(std::sscanf(message.c_str(),
                      "%lld tensors, out of memory: asked for %lld bytes with %lld in use",
                      &tensors, &asked, &in_use) == 3);
  CHECK_THAT(message, ContainsSubstring("lower batch"));
  CHECK(tensors >= 1);
  CHECK(asked == 4 << 20);
  CHECK(in_use >= (80LL << 20) + (tensors - 1) * (4LL << 20));
}
