// The header of a safetensors file, and the tensors that it names.
#include "tests/fuzz/fuzz.h"
#include "train/safetensors.h"

using namespace tapeformer;

namespace {

std::string file_with(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header + std::string(data_bytes, '\1');
}

}  // namespace

const std::vector<std::string> seeds = {
    file_with("{}", 0),
    file_with(R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8),
    file_with(R"({"__metadata__":{"step":"5","config":"{}"},"b":{"dtype":"F64","shape":[1],)"
              R"("data_offsets":[0,8]},"h":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
              10),
};

FUZZ_TARGET(input) {
  // The length is made to fit in every second input, or few would come past it.
  std::string bytes(input);
  if (bytes.size() >= 9 && bytes.back() % 2)
    for (int i = 0; i < 8; ++i) {
      const uint64_t begin = bytes.find('}', 8);
      const uint64_t length = begin == std::string::npos ? bytes.size() - 8 : bytes.rfind('}') - 7;
      bytes[i] = static_cast<char>(length >> (8 * i));
    }
  only_errors([&] {
    const Safetensors file(file_of(bytes));
    uint64_t end = 0;
    for (const Safetensors::Entry& entry : file.entries()) {
      promise(entry.begin == end && entry.end >= end, "tensors lie one after the other");
      end = entry.end;
      only_errors(
          [&] { promise(file.read(entry.name).bytes() == end - entry.begin, "all is read"); });
    }
    promise(end < bytes.size(), "tensors lie in the file");
  });
}
