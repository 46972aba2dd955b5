// The scheduler. A thread runs until it waits, then the next one in order takes its turn; nothing
// runs at the same time, so whatever a thread may see without a barrier depends on the order alone.
#include "block.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "device.h"
#include "fiber.h"
#include "report.h"
#include "thread_sanitizer.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulator {
namespace {

constexpr unsigned warp_size = 32, most_threads = 1024;
constexpr size_t stack_bytes = 64 << 10;
// Under ThreadSanitizer neighbouring blocks run on different fibers, so that it sees them as
// different threads.
constexpr size_t fiber_sets = under_thread_sanitizer ? 2 : 1;

// A group of threads that meet: a block at a barrier, a warp at a shuffle.
struct Meeting {
  unsigned members = 0, arrived = 0, finished = 0;
  uint64_t generation = 0;  // how often all have met
  Place place;              // where the first of those that wait has arrived
};

struct Warp {
  Meeting meeting;
  // Two sets of slots: a lane may give its next value before the others have read this one.
  uint64_t slots[2][warp_size];
  char sync[2] = {};  // addresses for ThreadSanitizer
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool wanted;
  uint64_t group;
};

struct Thread {
  std::unique_ptr<Fiber> fibers[fiber_sets];
  std::deque<Copy> copies;  // not done yet, in the order they were started
  uint64_t groups = 0;      // of copies that are complete
  uint3 index;
  bool finished = true;
  const Meeting* waits_for = nullptr;
  uint64_t until = 0;  // the generation that ends the wait
};

struct Scheduler {
  std::unique_ptr<Fiber> main;
  Thread threads[most_threads];
  Warp warps[most_threads / warp_size];
  Meeting block;
  const Launch* launch = nullptr;
  unsigned current = 0;
  size_t set = 0;
  Order order = Order::forward;
  std::mt19937_64 random;
  std::set<std::string> kernels;
  std::map<std::string, size_t> dynamic_bytes;
  char sync_start = 0, sync_end = 0, sync_barrier[2] = {};  // addresses for ThreadSanitizer
};

Scheduler& scheduler() {
  static Scheduler* const scheduler = new Scheduler;
  return *scheduler;
}

unsigned count_of(const Launch& launch) { return static_cast<unsigned>(launch.block.count()); }

// A place that threads wait at, as text: "file:line".
std::string text_of(Place place) {
  return std::string(place.file) + ':' + std::to_string(place.line);
}

void meet(Meeting& meeting, Place place, const char* what) {
  Scheduler& s = scheduler();
  Thread& self = s.threads[s.current];
  if (meeting.finished)
    fault("%s at %s, but %u of %u threads have ended and never come", what, text_of(place).c_str(),
          meeting.finished, meeting.members);
  if (meeting.arrived == 0)
    meeting.place = place;
  else if (place.line != meeting.place.line || place.file != meeting.place.file)
    fault("divergent: this thread is at the %s at %s, others wait at %s", what,
          text_of(place).c_str(), text_of(meeting.place).c_str());
  const uint64_t generation = meeting.generation;
  if (++meeting.arrived == meeting.members) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  self.waits_for = &meeting;
  self.until = generation + 1;
  self.fibers[s.set]->switch_to(*s.main);
}

void finish_in(Meeting& meeting, const char* what) {
  ++meeting.finished;
  if (meeting.arrived)
    fault("a thread ended, but others wait for it at the %s at %s", what,
          text_of(meeting.place).c_str());
}

void thread_entry() {
  Scheduler& s = scheduler();
  acquire(&s.sync_start);
  s.launch->body();
  release(&s.sync_end);
  Thread& self = s.threads[s.current];
  if (!self.copies.empty())
    fault("a thread ended with %zu copies that it never waited for", self.copies.size());
  self.finished = true;
  finish_in(s.block, "barrier");
  finish_in(s.warps[s.current / warp_size].meeting, "shuffle");
  self.fibers[s.set]->leave_to(*s.main);
}

std::vector<unsigned> turns(unsigned count) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0);
  Scheduler& s = scheduler();
  if (s.order == Order::reverse) std::reverse(order.begin(), order.end());
  if (s.order == Order::random) std::shuffle(order.begin(), order.end(), s.random);
  return order;
}

// No thread can go on: a warp waits for lanes that wait elsewhere.
[[noreturn]] void report_absent(unsigned count) {
  Scheduler& s = scheduler();
  for (unsigned first = 0; first < count; first += warp_size) {
    const Meeting& warp = s.warps[first / warp_size].meeting;
    if (warp.arrived == 0) continue;
    for (unsigned t = first; t < first + warp_size; ++t)
      if (s.threads[t].waits_for != &warp) {
        s.current = t;
        threadIdx = s.threads[t].index;
        fault("absent lane: %u lanes of warp %u wait at the shuffle at %s, and lane %u waits at %s",
              warp.arrived, first / warp_size, text_of(warp.place).c_str(), t - first,
              text_of(s.block.place).c_str());
      }
  }
  fault("the threads wait for each other without end");
}

void start_threads(const Launch& launch, unsigned count) {
  Scheduler& s = scheduler();
  s.block = {.members = count, .place = {}};
  for (unsigned w = 0; w < count / warp_size; ++w)
    s.warps[w].meeting = {.members = warp_size, .place = {}};
  for (unsigned t = 0; t < count; ++t) {
    Thread& thread = s.threads[t];
    auto& fiber = thread.fibers[s.set];
    if (!fiber) fiber = std::make_unique<Fiber>(stack_bytes);
    thread.index = {t % launch.block.x, t / launch.block.x % launch.block.y,
                    t / launch.block.x / launch.block.y};
    thread.finished = false;
    thread.waits_for = nullptr;
    thread.groups = 0;
    fiber->start(thread_entry);
  }
}

// "a<b::c<d>, e>" runs a, and c, which may be a function that a applies.
void note_names(const std::string& kernel) {
  const size_t first = kernel.find('<');
  scheduler().kernels.insert(kernel.substr(0, first));
  if (first == std::string::npos) return;
  std::string argument = kernel.substr(first + 1);
  argument = argument.substr(0, argument.find_first_of("<>,"));
  const size_t scope = argument.rfind("::");
  scheduler().kernels.insert(scope == std::string::npos ? argument : argument.substr(scope + 2));
}

void run_block(const Launch& launch) {
  Scheduler& s = scheduler();
  const unsigned count = count_of(launch);
  begin_shared_memory(launch.dynamic_bytes);
  start_threads(launch, count);
  release(&s.sync_start);
  const std::vector<unsigned> order = turns(count);
  while (s.block.finished < count) {
    bool progress = false;
    for (const unsigned t : order) {
      Thread& thread = s.threads[t];
      if (thread.finished) continue;
      if (thread.waits_for && thread.waits_for->generation < thread.until) continue;
      thread.waits_for = nullptr;
      s.current = t;
      threadIdx = thread.index;
      s.main->switch_to(*thread.fibers[s.set]);
      progress = true;
    }
    if (!progress) report_absent(count);
  }
}

}  // namespace

void set_order(Order order, uint64_t seed) {
  scheduler().order = order;
  scheduler().random.seed(seed);
}

const std::set<std::string>& kernels_run() { return scheduler().kernels; }
const std::map<std::string, size_t>& dynamic_shared_bytes() { return scheduler().dynamic_bytes; }

void run(const Launch& launch) {
  Scheduler& s = scheduler();
  const size_t blocks = launch.grid.count();
  if (!s.main) s.main = std::make_unique<Fiber>();
  s.launch = &launch;
  note_names(launch.kernel);
  if (launch.dynamic_bytes) {
    size_t& most = s.dynamic_bytes[launch.kernel];
    most = std::max(most, launch.dynamic_bytes);
  }
  blockDim = {launch.block.x, launch.block.y, launch.block.z};
  gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
  for (const unsigned b : turns(static_cast<unsigned>(blocks))) {
    blockIdx = {b % launch.grid.x, b / launch.grid.x % launch.grid.y,
                b / launch.grid.x / launch.grid.y};
    s.set = b % fiber_sets;
    run_block(launch);
  }
  acquire(&s.sync_end);
  check_slack();
  s.launch = nullptr;
}

void wait_for_block(Place place) {
  Scheduler& s = scheduler();
  char* sync = &s.sync_barrier[s.block.generation % 2];
  release(sync);
  meet(s.block, place, "barrier");
  acquire(sync);
}

void wait_for_warp(uint32_t mask, Place place) {
  Scheduler& s = scheduler();
  Warp& warp = s.warps[s.current / warp_size];
  char* sync = &warp.sync[warp.meeting.generation % 2];
  release(sync);
  exchange(mask, 0, 0, place);
  acquire(sync);
}

uint64_t exchange(uint32_t mask, uint64_t value, unsigned source, Place place) {
  Scheduler& s = scheduler();
  Warp& warp = s.warps[s.current / warp_size];
  if (mask != 0xffffffffu)
    fault("the shuffle at %s has the mask %08x; only whole warps may shuffle",
          text_of(place).c_str(), mask);
  uint64_t* slots = warp.slots[warp.meeting.generation % 2];
  slots[lane_index()] = value;
  meet(warp.meeting, place, "shuffle");
  return slots[source % warp_size];
}

void start_copy(void* to, const void* from, size_t bytes, bool wanted) {
  Scheduler& s = scheduler();
  check_aligned("a copy's destination", to, bytes);
  check_aligned("a copy's source", from, bytes);
  Thread& self = s.threads[s.current];
  self.copies.push_back({to, from, bytes, wanted, self.groups});
}

void end_group_of_copies() { ++scheduler().threads[scheduler().current].groups; }

void wait_for_copies(unsigned left) {
  Thread& self = scheduler().threads[scheduler().current];
  while (!self.copies.empty() && self.copies.front().group + left < self.groups) {
    const Copy copy = self.copies.front();
    self.copies.pop_front();
    if (copy.wanted)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
}

void check_aligned(const char* what, const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    fault("%s at %p is no multiple of %zu bytes", what, address, bytes);
}

unsigned lane_index() { return scheduler().current % warp_size; }

bool running_kernel() { return scheduler().launch != nullptr; }

bool describe_thread(char* text, size_t size) {
  const Launch* launch = scheduler().launch;
  if (!launch) return false;
  std::snprintf(text, size, "in %s, block (%u, %u, %u), thread (%u, %u, %u), launched at %s:%d",
                launch->kernel.c_str(), blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
                threadIdx.y, threadIdx.z, launch->place.file, launch->place.line);
  return true;
}

bool stack_guard_at(const void* address) {
  for (const Thread& thread : scheduler().threads)
    for (const auto& fiber : thread.fibers)
      if (fiber && fiber->guards(address)) return true;
  return false;
}

}  // namespace cuda_emulator
