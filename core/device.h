// Where a tensor's memory lies.
#pragma once

#include <cstdint>
#include <ostream>

namespace tapeformer {

enum class Device : uint8_t { cpu, cuda };

inline const char* name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

inline std::ostream& operator<<(std::ostream& out, Device device) { return out << name_of(device); }

}  // namespace tapeformer
