// Runs the threads of a kernel's blocks on fibers, and makes them wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "memory.h"

namespace cuda_emulator {

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
  size_t count() const { return size_t{x} * y * z; }
};

struct Launch {
  std::string kernel;
  Place place;
  Size3 grid, block;
  size_t dynamic_bytes = 0;
  std::function<void()> body;  // what one thread does
};

/// In which order the threads of a block, and the blocks, take their turns. What a kernel computes
/// must not depend on it.
enum class Order { forward, reverse, random };
void set_order(Order order, uint64_t seed = 1);

/// Runs a kernel now. Faults for a block of more than 1024 threads or one not a multiple of 32.
void run(const Launch& launch);
/// Names, without template arguments and namespaces, of all kernels that ran in this process, and
/// of their first template arguments.
const std::set<std::string>& kernels_run();
/// The most dynamic shared memory, in bytes, that each kernel that has any was launched with; by
/// names with template arguments.
const std::map<std::string, size_t>& dynamic_shared_bytes();

/// The running thread waits until all threads of its block are here.
void wait_for_block(Place place);
/// The running thread waits until all lanes of its warp are here.
void wait_for_warp(uint32_t mask, Place place);
/// The running thread gives `value` to its warp, waits until every lane is here, and returns what
/// lane `source` gave.
uint64_t exchange(uint32_t mask, uint64_t value, unsigned source, Place place);
/// The running thread starts a copy of `bytes` bytes; zeros are copied where they are not wanted.
void start_copy(void* to, const void* from, size_t bytes, bool wanted);
/// What the running thread has started since the last call is a group.
void end_group_of_copies();
/// Copies what the running thread has started, but for its last `left` groups. What nobody waits
/// for never arrives, so a wait that is missing shows.
void wait_for_copies(unsigned left);
/// Faults unless the address is a multiple of `bytes`; `what` begins the message.
void check_aligned(const char* what, const void* address, size_t bytes);
/// The running thread's place in its warp.
unsigned lane_index();

bool running_kernel();
/// Writes which kernel, block and thread are running; false when none is.
bool describe_thread(char* text, size_t size);
/// Whether the address is a guard page of some thread's stack.
bool stack_guard_at(const void* address);

}  // namespace cuda_emulator
