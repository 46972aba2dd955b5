// Finding the GPU, its memory and what is said when either is missing.
#include "core/device.h"

#include "autograd/ops.h"
#include "emulation.h"
#include "tests/catch.h"

using namespace tapeformer;

#ifdef TAPEFORMER_CUDA_EMULATED
namespace {

// Another machine while it lives.
struct Pretending {
  explicit Pretending(const cuda_emulator::Machine& machine) { cuda_emulator::pretend(machine); }
  ~Pretending() { cuda_emulator::pretend({}); }
};

}  // namespace
#endif

TEST_CASE("cuda_device_is_found_by_name") {
  CHECK(find_device("cpu") == Device::cpu);
  CHECK(find_device("cuda") == Device::cuda);
  CHECK(find_device("cuda:0") == Device::cuda);
  CHECK(why_no_cuda().empty());
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0x"})
    CHECK_THROWS_WITH(find_device(wrong), ContainsSubstring("use cpu, cuda or cuda:<index>"));
}

#ifdef TAPEFORMER_CUDA_EMULATED
TEST_CASE("cuda_says_in_a_sentence_why_it_cannot_be_used") {
  struct Case {
    cuda_emulator::Machine machine;
    const char* why;
  };
  const Case cases[] = {
      {{.error = cudaErrorInsufficientDriver, .driver_version = 0},
       "there is no NVIDIA driver here"},
      {{.error = cudaErrorInsufficientDriver, .driver_version = 11040},
       "the NVIDIA driver is too old: it serves CUDA 11.4"},
      {{.devices = 0, .error = cudaErrorNoDevice}, "there is an NVIDIA driver here, but no GPU"},
      {{.capability = 75}, "no kernels for a GPU of compute capability 7.5"}};
  for (const Case& c : cases) {
    const Pretending pretending(c.machine);
    CHECK_THAT(why_no_cuda(), ContainsSubstring(c.why));
    CHECK_THROWS_WITH(find_device("cuda"),
                      ContainsSubstring(c.why) && ContainsSubstring("use cpu"));
  }
  CHECK_THROWS_WITH(find_device("cuda:7"),
                    ContainsSubstring("GPU 0 is in use") || ContainsSubstring("there is no GPU 7"));
}

TEST_CASE("cuda_out_of_memory_says_what_was_asked_and_what_is_left") {
  const Tensor held = Tensor::zeros({1 << 18}, DType::f32, Device::cuda);
  const Pretending pretending({.memory_bytes = size_t{64} << 20});
  CHECK_THROWS_WITH(Tensor::empty({1 << 28}, DType::f32, Device::cuda),
                    ContainsSubstring("asked for 1073741824 bytes") &&
                        ContainsSubstring("in use") && ContainsSubstring("left") &&
                        ContainsSubstring("a smaller batch"));
}
#endif

TEST_CASE("cuda_memory_is_counted_and_returns") {
  const size_t before = memory_stats(Device::cuda).live_bytes;
  {
    const Tensor x = Tensor::empty({1024}, DType::f32, Device::cuda);  // no part of a unit is lost
    CHECK(memory_stats(Device::cuda).live_bytes == before + 4096);
  }
  CHECK(memory_stats(Device::cuda).live_bytes == before);
}

TEST_CASE("cuda_copies_come_back_whole") {
  std::vector<float> values(3 << 20);  // more than one piece of pinned memory
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1001);
  const Tensor here = Tensor::from(values);
  const Tensor there = here.to(Device::cuda);
  here.fill(0);  // the copy has taken what it needs
  CHECK(there.to_vector<float>() == values);
  CHECK(there.clone().to_vector<float>() == values);
  CHECK(there.rows(5, 6).item() == 5);
}

TEST_CASE("operands_on_two_devices_are_named") {
  const Tensor a = Tensor::zeros({2}), b = Tensor::zeros({2}, DType::f32, Device::cuda);
  CHECK_THROWS_WITH(add(a, b), ContainsSubstring("cpu") && ContainsSubstring("cuda"));
}
