#include "core/threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/check.h"

namespace tapeformer {
namespace {

// CPU seconds per second that cgroup v2 (cpu.max: "quota period") or v1 allows; 0: no limit.
double cgroup_cores() {
  double quota = 0, period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period && period > 0)
    return quota / period;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0)
    return quota / period;
  return 0;
}

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    if (const int n = std::atoi(text); n >= 1 && n <= 1024) return n;
  return available_cores();
}

std::atomic<int> chosen{0};

}  // namespace

int available_cores() {
  int cores = 1;
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
#else
  cores = omp_get_num_procs();
#endif
  if (const double limit = cgroup_cores(); limit > 0)
    cores = std::min(cores, std::max(1, static_cast<int>(std::floor(limit + 0.01))));
  return std::max(cores, 1);
}

int num_threads() {
  if (const int n = chosen.load(std::memory_order_relaxed)) return n;
  static const int by_default = default_threads();
  return by_default;
}

void set_num_threads(int n) {
  check(n >= 1 && n <= 1024, "threads: needs a number from 1 to 1024, got ", n);
  chosen = n;
}

}  // namespace tapeformer
