// Finding the device that a user names.
#include "core/device.h"

#include <charconv>

#include "core/check.h"
#include "core/cuda/backend.h"

namespace tapeformer {
namespace {

// The index of "cuda:<index>"; -1 for anything else.
int index_in(const std::string& name) {
  constexpr size_t prefix = sizeof("cuda:") - 1;
  int index = -1;
  if (name.compare(0, prefix, "cuda:") != 0) return -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix, end, index);
  return error == std::errc() && stop == end ? index : -1;
}

std::string why_no_gpu(int index) {
  if constexpr (knows_cuda)
    if (cuda::built()) return cuda::why_not(index);
  return "this program was built without CUDA";
}

}  // namespace

std::string why_no_cuda() { return why_no_gpu(-1); }

Device find_device(const std::string& name) {
  if (name == "cpu") return Device::cpu;
  const int index = index_in(name);
  check(name == "cuda" || index >= 0, "device: '", name,
        "' is none; use cpu, cuda or cuda:<index>");
  const std::string why = why_no_gpu(index);
  check(why.empty(), "device: ", name, " cannot be used: ", why, "; use cpu");
  if constexpr (knows_cuda)
    if (index >= 0) cuda::use_gpu(index);
  return Device::cuda;
}

void synchronize(Device device) {
  if constexpr (knows_cuda)
    if (device == Device::cuda) cuda::synchronize();
}

}  // namespace tapeformer
