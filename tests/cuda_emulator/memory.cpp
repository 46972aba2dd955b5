#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "report.h"
#include "thread_sanitizer.h"

namespace cuda_emulator {
namespace {

constexpr size_t page = 4096;
constexpr size_t static_shared_limit = 48 << 10, shared_limit = 227 << 10;

size_t pages_for(size_t bytes) { return (bytes + page - 1) / page * page; }

// Addresses that nobody may use until they are opened, handed out once.
struct Range {
  explicit Range(size_t bytes) : bytes(bytes) {
    void* mapping =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) std::abort();
    begin = static_cast<char*>(mapping);
    next = begin;
  }
  bool contains(const void* address) const { return address >= begin && address < begin + bytes; }
  char* take(size_t wanted) {
    if (wanted > bytes - static_cast<size_t>(next - begin))
      fault("no addresses are left; a shorter run needs fewer");
    char* taken = next;
    next += wanted;
    return taken;
  }
  char *begin, *next;
  size_t bytes;
};

struct Block {
  char *begin, *pages;  // the first byte; the first page, in which slack may come before it
  size_t bytes;
  bool live = true;
  char* end() const { return begin + bytes; }
  size_t mapped() const { return static_cast<size_t>(end() - pages); }
};

struct Variable {
  Block block;
  Place place;
  uint64_t used_in = 0;  // the block of threads that used it last
};

struct State {
  Range device{size_t{64} << 30}, shared{size_t{64} << 20};
  std::map<char*, Block> blocks;  // by their first page
  size_t in_use = 0, total = size_t{4} << 30;
  int open = 0;
  std::map<const void*, Variable> variables;
  Variable dynamic{{nullptr, nullptr, 0, false}, {}, 0};
  char* dynamic_end = shared.take(pages_for(shared_limit) + page) + pages_for(shared_limit);
  uint64_t block_of_threads = 0;
  size_t static_bytes = 0;
};

State& state() {
  static State* const state = new State;
  return *state;
}

void protect(char* begin, size_t bytes, int access) {
  if (bytes && mprotect(begin, bytes, access) != 0)
    fault("mprotect failed: too many buffers are alive");
}

// A block whose end is the end of a page, with a closed page behind it.
Block place_block(Range& range, size_t bytes, size_t alignment) {
  char* pages = range.take(pages_for(bytes) + page);
  char* end = pages + pages_for(bytes);
  return {end - (bytes + alignment - 1) / alignment * alignment, pages, bytes};
}

// Shared memory for another block. ThreadSanitizer has to forget who used it in the last one.
void make_fresh(char* pages, size_t bytes) {
  const Unseen unseen;
  if (under_thread_sanitizer && bytes)
    mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  std::memset(pages, 0xff, bytes);
}

// The buffer whose pages, or the guard page behind them, hold the address.
const Block* block_near(const void* address) {
  auto& blocks = state().blocks;
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  return after == blocks.begin() ? nullptr : &std::prev(after)->second;
}

long long distance(const void* address, const char* from) {
  return static_cast<const char*>(address) - from;
}

}  // namespace

void* allocate_device(size_t bytes) {
  State& s = state();
  watch_memory();
  if (bytes > s.total - std::min(s.total, s.in_use)) return nullptr;
  const size_t wanted = std::max<size_t>(bytes, 1);
  const size_t alignment = std::min<size_t>(wanted & -wanted, 256);
  const Block block = place_block(s.device, wanted, alignment);
  protect(block.pages, pages_for(wanted), PROT_READ | PROT_WRITE);
  std::memset(block.pages, 0xff, pages_for(wanted));
  if (!s.open) protect(block.pages, pages_for(wanted), PROT_NONE);
  s.blocks[block.pages] = block;
  s.in_use += bytes;
  return block.begin;
}

void release_device(void* data) {
  State& s = state();
  Block* block = const_cast<Block*>(block_near(data));
  if (!block || !block->live || block->begin != data)
    fault("cudaFree of %p, which cudaMalloc did not give or which is free already", data);
  block->live = false;
  s.in_use -= block->bytes;
  protect(block->pages, pages_for(block->mapped()), PROT_NONE);
  madvise(block->pages, pages_for(block->mapped()), MADV_DONTNEED);
}

void check_device_range(const char* what, const void* data, size_t bytes) {
  if (bytes == 0) return;
  const Block* block = is_device_address(data) ? block_near(data) : nullptr;
  if (!block || data < block->begin || data >= block->end())
    fault("%s: %p is no device memory", what, data);
  if (!block->live) fault("%s: %p is device memory that was freed", what, data);
  if (bytes > static_cast<size_t>(block->end() - static_cast<const char*>(data)))
    fault("%s: %zu bytes leave a device buffer of %zu bytes", what, bytes, block->bytes);
}

bool is_device_address(const void* address) { return state().device.contains(address); }

void check_slack() {
  for (const auto& [pages, block] : state().blocks)
    if (block.live)
      for (const char* at = pages; at < block.begin; ++at)
        if (static_cast<unsigned char>(*at) != 0xff)
          fault("written out of bounds: %lld bytes before a device buffer of %zu bytes",
                distance(block.begin, at), block.bytes);
}

OpenMemory::OpenMemory() {
  watch_memory();
  if (state().open++) return;
  for (auto& [pages, block] : state().blocks)
    if (block.live) protect(pages, pages_for(block.mapped()), PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory() {
  if (--state().open) return;
  for (auto& [pages, block] : state().blocks)
    if (block.live) protect(pages, pages_for(block.mapped()), PROT_NONE);
}

size_t device_bytes_in_use() { return state().in_use; }
size_t device_bytes_in_total() { return state().total; }
void set_device_bytes_in_total(size_t bytes) { state().total = bytes; }

void* shared_variable(const void* key, size_t bytes, size_t alignment, Place place) {
  State& s = state();
  auto found = s.variables.find(key);
  if (found == s.variables.end()) {
    found = s.variables.insert({key, {place_block(s.shared, bytes, alignment), place}}).first;
    protect(found->second.block.pages, pages_for(bytes), PROT_READ | PROT_WRITE);
  }
  Variable& variable = found->second;
  if (variable.used_in != s.block_of_threads) {
    variable.used_in = s.block_of_threads;
    s.static_bytes += bytes;
    if (s.static_bytes > static_shared_limit ||
        s.static_bytes + s.dynamic.block.bytes > shared_limit)
      fault("%zu bytes of shared memory are more than a block has", s.static_bytes);
    make_fresh(variable.block.pages, pages_for(bytes));
  }
  return variable.block.begin;
}

void* dynamic_shared_memory() { return state().dynamic.block.begin; }

void begin_shared_memory(size_t dynamic_bytes) {
  State& s = state();
  ++s.block_of_threads;
  s.static_bytes = 0;
  Block& block = s.dynamic.block;
  if (dynamic_bytes > shared_limit)
    fault("%zu bytes of dynamic shared memory; a block has %zu", dynamic_bytes, shared_limit);
  if (!block.live || block.bytes != dynamic_bytes) {
    char* end = s.dynamic_end;
    protect(end - pages_for(shared_limit), pages_for(shared_limit), PROT_NONE);
    // 16-byte aligned, as the declaration says; up to 15 bytes behind it go unguarded.
    block = {end - (dynamic_bytes + 15) / 16 * 16, end - pages_for(dynamic_bytes), dynamic_bytes};
    protect(block.pages, pages_for(dynamic_bytes), PROT_READ | PROT_WRITE);
  }
  make_fresh(block.pages, pages_for(dynamic_bytes));
}

bool describe_access(const void* address, char* text, size_t size) {
  State& s = state();
  if (s.shared.contains(address)) {
    const Variable* nearest = &s.dynamic;
    for (const auto& [key, variable] : s.variables)
      if (address >= variable.block.pages && address < variable.block.end() + page)
        nearest = &variable;
    if (nearest == &s.dynamic)
      std::snprintf(text, size,
                    "out of bounds: %lld bytes past the begin of %zu bytes of dynamic "
                    "shared memory",
                    distance(address, s.dynamic.block.begin), s.dynamic.block.bytes);
    else
      std::snprintf(text, size,
                    "out of bounds: %lld bytes past the end of the shared variable at "
                    "%s:%d",
                    distance(address, nearest->block.end()), nearest->place.file,
                    nearest->place.line);
    return true;
  }
  if (!s.device.contains(address)) return false;
  const Block* block = block_near(address);
  if (!block)
    std::snprintf(text, size, "out of bounds: %p is no device buffer", address);
  else if (!block->live)
    std::snprintf(text, size,
                  "use after free: a device buffer of %zu bytes that cudaFree has taken "
                  "back",
                  block->bytes);
  else if (address >= block->end())
    std::snprintf(text, size,
                  "out of bounds: %lld bytes past the end of a device buffer of %zu "
                  "bytes",
                  distance(address, block->end()), block->bytes);
  else
    std::snprintf(text, size, "host code uses device memory: byte %lld of a buffer of %zu bytes",
                  distance(address, block->begin), block->bytes);
  return true;
}

}  // namespace cuda_emulator
