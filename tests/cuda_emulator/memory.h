// Device memory: closed to host code, each buffer between guard pages and filled with NaN.
#pragma once

#include <cstddef>

namespace cuda_emulator {

/// Where a buffer or a variable was asked for.
struct Place {
  const char* file = nullptr;
  int line = 0;
};

/// `bytes` of device memory that end at a guard page, filled with 0xff, which is NaN in every
/// floating format. Aligned as far as that allows: to the largest power of two, at most 256, that
/// divides `bytes`. Null when more than the device's memory would be in use.
void* allocate_device(size_t bytes);
/// Faults unless `data` is where a live buffer begins. Its memory is never handed out again.
void release_device(void* data);
/// Faults unless [data, data + bytes) lies in one live buffer; `what` begins the message.
void check_device_range(const char* what, const void* data, size_t bytes);
/// True for an address anywhere in the range that device memory comes from.
bool is_device_address(const void* address);
/// Faults where somebody wrote between a buffer and the guard page in front of it.
void check_slack();

/// While one of these lives, device memory can be read and written.
struct OpenMemory {
  OpenMemory();
  ~OpenMemory();
};

size_t device_bytes_in_use();
size_t device_bytes_in_total();
void set_device_bytes_in_total(size_t bytes);

/// The shared memory of the running block: each variable ends at a guard page. `key` names a
/// variable; on its first use in a block it is filled with 0xff.
void* shared_variable(const void* key, size_t bytes, size_t alignment, Place place);
/// The dynamic part, of the size given to begin_shared_memory.
void* dynamic_shared_memory();
/// A new block begins, with `dynamic_bytes` of dynamic shared memory.
void begin_shared_memory(size_t dynamic_bytes);

/// Writes what is wrong about an access to `address`; false for one that is none of the
/// emulator's.
bool describe_access(const void* address, char* text, size_t size);

}  // namespace cuda_emulator
