// Where a tensor's memory lies, and whether this machine has such a device.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

// Marks what the CUDA backend defines. A program without it lacks these symbols, which is no error
// as long as they are not used; a program with it (TAPEFORMER_CUDA) must have them all.
#if defined(TAPEFORMER_CUDA) || defined(__APPLE__)
#define TAPEFORMER_CUDA_PART
#else
#define TAPEFORMER_CUDA_PART [[gnu::weak]]
#endif

namespace tapeformer {

/// Whether this system can have CUDA at all.
#ifdef __APPLE__
inline constexpr bool knows_cuda = false;
#else
inline constexpr bool knows_cuda = true;
#endif

enum class Device : uint8_t { cpu, cuda };

inline const char* name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

inline std::ostream& operator<<(std::ostream& out, Device device) { return out << name_of(device); }

/// The device called "cpu", "cuda" or "cuda:<index>". With an index, the process computes on that
/// GPU from then on. Throws, saying why, when this program or machine lacks it.
Device find_device(const std::string& name);
/// Why Device::cuda cannot be used here, in one sentence; empty when it can.
std::string why_no_cuda();
/// Waits until the device has done all that it was given.
void synchronize(Device device);

}  // namespace tapeformer
