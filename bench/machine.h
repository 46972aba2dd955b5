// What the machine can do and what the process takes from it: time, arithmetic, memory bandwidth,
// resident memory, page faults.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "core/device.h"

namespace tapeformer::bench {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

template <class F>
double milliseconds(F&& f) {
  const auto start = Clock::now();
  f();
  return milliseconds_since(start);
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// The median of calls that together take `budget` milliseconds, after one that does not count.
template <class F>
double warm_milliseconds(double budget, F&& f) {
  f();
  std::vector<double> times;
  const auto start = Clock::now();
  do times.push_back(milliseconds(f));
  while (milliseconds_since(start) < budget);
  return median(times);
}

/// The least time that a call takes, in milliseconds, of calls that a device gets one after the
/// other.
template <class F>
double least_milliseconds(Device device, const F& f) {
  constexpr int calls = 5;
  double least = 1e30;
  for (int round = 0; round < 5; ++round) {  // the first ones warm the processor up
    synchronize(device);
    const double time = milliseconds([&] {
      for (int i = 0; i < calls; ++i) f();
      synchronize(device);
    });
    least = std::min(least, time / calls);
  }
  return least;
}

struct Resident {
  int64_t now = 0, peak = 0;  // bytes
};

/// Memory of this process that is in RAM. Where there is no /proc, only the peak is known.
inline Resident resident() {
  Resident result;
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) result.now = 1024 * std::stoll(line.substr(6));
    if (line.starts_with("VmHWM:")) result.peak = 1024 * std::stoll(line.substr(6));
  }
  if (result.peak == 0) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    result.peak = usage.ru_maxrss;  // bytes on macOS
  }
  return result;
}

/// Page faults so far that needed no disk: each is a fresh page of memory.
inline int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif
using Vector [[gnu::vector_size(vector_bytes)]] = float;

/// `rounds` times 12 independent multiply-adds of vectors: more than latency times throughput of
/// any processor, and few enough for 16 registers.
[[gnu::noinline]] inline float multiply_add_chain(int64_t rounds, float factor, float term) {
  constexpr int chains = 12;
  const Vector a = factor - Vector{}, b = term - Vector{};
  Vector x[chains];
  for (int i = 0; i < chains; ++i) x[i] = static_cast<float>(i) - Vector{};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = x[i] * a + b;
  }
  Vector sum{};
  for (int i = 0; i < chains; ++i) sum += x[i];
  return sum[0];
}

/// f32 operations per millisecond of all threads together, two for each multiply-add: the most that
/// was seen within 40 ms, because it is a property of the machine and not of the moment.
inline double peak_flops_per_ms(int threads) {
  constexpr int64_t rounds = 1 << 19;
  constexpr double operations = 2.0 * 12 * (vector_bytes / sizeof(float)) * rounds;
  volatile float factor = 0.5f, keep = 0;
  double best = 0;
  for (const auto start = Clock::now(); milliseconds_since(start) < 40;) {
    const double time = milliseconds([&] {
#pragma omp parallel num_threads(threads)
      {
        const float result = multiply_add_chain(rounds, factor, 1);
#pragma omp critical
        keep = result;
      }
    });
    best = std::max(best, operations * threads / time);
  }
  return best;
}

/// The memory traffic of an AdamW step over n parameters, 28 bytes each: reads p, g, m and v, and
/// writes all but g, in place.
inline void adamw_traffic(float* p, const float* g, float* m, float* v, int64_t n, int threads) {
#pragma omp parallel for simd schedule(static) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) {
    const float m_new = 0.5f * (m[i] + g[i]), v_new = 0.5f * (v[i] + g[i]);
    m[i] = m_new;
    v[i] = v_new;
    p[i] = 0.5f * (p[i] + m_new + v_new);
  }
}

}  // namespace tapeformer::bench
