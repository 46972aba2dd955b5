// The emulator finds what it is there to find: each fault is planted in a kernel that is otherwise
// right, and must be reported, or must change a result.
#include "cuda_emulator/emulator.h"

#include <vector>

#include "core/cuda/launch.cuh"
#include "cuda_emulator/death.h"
#include "cuda_emulator/device_floats.h"
#include "tests/catch.h"

using cuda_emulator::counted;
using cuda_emulator::DeviceFloats;
using cuda_emulator::last_words;
using cuda_emulator::Order;
using cuda_emulator::Stream;
using tapeformer::cuda::launch;

namespace {

constexpr int threads = 64;

template <class F>
void in_every_order(F f) {
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    cuda_emulator::set_order(order, 7);
    f();
  }
  cuda_emulator::set_order(Order::forward);
}

// out[b] = sum of block b's numbers, through shared memory.
__global__ void block_sum(const float* x, float* out) {
  SHARED(float, partial, [threads]);
  partial[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned step = threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

[[maybe_unused]] __global__ void block_sum_without_barrier(const float* x, float* out) {
  SHARED(float, partial, [threads]);
  partial[threadIdx.x] = x[threadIdx.x];
  float sum = 0;
  for (int i = 0; i < threads; ++i) sum += partial[i];
  if (threadIdx.x == 0) out[0] = sum;
}

__global__ void warp_sum(const float* x, float* out) {
  float sum = x[threadIdx.x];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  out[threadIdx.x] = sum;
}

__global__ void scale(const float* x, float factor, float* y) {
  y[threadIdx.x] = factor * x[threadIdx.x];
}

__global__ void read_beyond(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
__global__ void write_before(float* y) { *(y - 1 + threadIdx.x) = 0; }
__global__ void static_shared_beyond(float* y) {
  SHARED(float, row, [threads]);
  float* const next = row + 1;  // a pointer: of an array's index the sanitizer would tell first
  next[threadIdx.x] = 1;
  y[threadIdx.x] = row[threadIdx.x];
}
__global__ void dynamic_shared_beyond(float* y) {
  DYN_SHARED(float, row);
  row[threadIdx.x + 1] = 1;
  y[threadIdx.x] = row[threadIdx.x];
}
__global__ void barrier_for_half(float* y) {
  if (threadIdx.x < threads / 2) __syncthreads();
  y[threadIdx.x] = 1;
}
__global__ void two_barriers(float* y) {
  if (threadIdx.x < threads / 2)
    __syncthreads();
  else
    __syncthreads();
  y[threadIdx.x] = 1;
}
__global__ void early_return(float* y) {
  if (threadIdx.x == 3) return;
  __syncthreads();
  y[threadIdx.x] = 1;
}
__global__ void absent_lane(float* y) {
  if (threadIdx.x != 5) y[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
  __syncthreads();
}
__global__ void half_mask(float* y) { y[threadIdx.x] = __shfl_xor_sync(0xffff, 1.0f, 1); }
[[gnu::noinline]] float recurse(int depth, const float* above) {
  volatile float space[256];
  space[0] = *above + 1;
  const float mine = space[0];
  return depth == 0 ? mine : recurse(depth - 1, &mine) + space[0];
}
__global__ void deep_recursion(float* y) { y[threadIdx.x] = recurse(10000, y + threadIdx.x); }

__global__ void read_copy(const float* x, float* y, bool waits) {
  SHARED(float, row, [threads]);
  cuda_emulator::start_copy(row + threadIdx.x, x + threadIdx.x, sizeof *x, true);
  cuda_emulator::end_group_of_copies();
  if (waits) cuda_emulator::wait_for_copies(0);
  y[threadIdx.x] = row[threadIdx.x];
  cuda_emulator::wait_for_copies(0);
}
__global__ void forget_copy(const float* x) {
  SHARED(float, row, [threads]);
  cuda_emulator::start_copy(row + threadIdx.x, x + threadIdx.x, sizeof *x, true);
}
__global__ void misaligned_copy(const float* x) {
  SHARED(float, row, [threads]);
  cuda_emulator::start_copy(row, x + 1, 16, true);
}

}  // namespace

TEST_CASE("emulated_kernels_compute_in_every_order") {
  const Stream stream;
  const DeviceFloats x(counted(3 * threads), stream), sums(3), warp_sums(threads);
  in_every_order([&] {
    launch<block_sum>(3, threads, 0, stream.stream, x.data, sums.data);
    launch<warp_sum>(1, threads, 0, stream.stream, x.data, warp_sums.data);
    CHECK(sums.read(stream) ==
          std::vector<float>{64 * 65 / 2, 64 * 65 / 2 + 64 * 64, 64 * 65 / 2 + 2 * 64 * 64});
    const std::vector<float> lanes = warp_sums.read(stream);
    for (int i = 0; i < threads; ++i) CHECK(lanes[i] == (i < 32 ? 528 : 528 + 32 * 32));
  });
  CHECK(cuda_emulator::kernels_run().count("block_sum") == 1);
}

TEST_CASE("emulator_finds_reading_and_writing_out_of_bounds") {
  const Stream stream;
  const DeviceFloats x(threads), y(threads);
  const std::string beyond = last_words([&] {
    launch<read_beyond>(1, threads, 0, stream.stream, x.data, y.data);
    cudaStreamSynchronize(stream);
  });
  CHECK_THAT(beyond, ContainsSubstring("0 bytes past the end of a device buffer of 256 bytes"));
  CHECK_THAT(beyond, ContainsSubstring("in read_beyond, block (0, 0, 0), thread (63, 0, 0)"));
  CHECK_THAT(beyond, ContainsSubstring("emulator_test.cpp:"));
  CHECK_THAT(last_words([&] {
               launch<write_before>(1, 32, 0, stream.stream, y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("4 bytes before a device buffer of 256 bytes; in write_before"));
}

TEST_CASE("emulator_finds_leaving_shared_memory") {
  const Stream stream;
  const DeviceFloats y(threads);
  CHECK_THAT(last_words([&] {
               launch<static_shared_beyond>(1, threads, 0, stream.stream, y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("0 bytes past the end of the shared variable at"));
  CHECK_THAT(last_words([&] {
               launch<dynamic_shared_beyond>(1, threads, threads * sizeof(float), stream.stream,
                                             y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("256 bytes past the begin of 256 bytes of dynamic shared memory"));
  CHECK_THAT(last_words([&] {
               launch<scale>(1, threads, 228 << 10, stream.stream, y.data, 1.0f, y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("a block has"));
}

#ifndef EMULATOR_THREAD_SANITIZER  // which would report it too, see sanitizer_test.cpp
TEST_CASE("emulator_shows_a_missing_barrier") {
  const Stream stream;
  const DeviceFloats x(counted(threads), stream), sum(1);
  int wrong = 0;
  in_every_order([&] {
    launch<block_sum_without_barrier>(1, threads, 0, stream.stream, x.data, sum.data);
    wrong += sum.read(stream)[0] != threads * (threads + 1) / 2;
  });
  CHECK(wrong > 0);
}
#endif

TEST_CASE("emulator_finds_divergent_barriers") {
  const Stream stream;
  const DeviceFloats y(threads);
  const auto words = [&](auto run) {
    return last_words([&] {
      run();
      cudaStreamSynchronize(stream);
    });
  };
  CHECK_THAT(words([&] { launch<barrier_for_half>(1, threads, 0, stream.stream, y.data); }),
             ContainsSubstring("a thread ended, but others wait for it at the barrier at"));
  CHECK_THAT(words([&] { launch<two_barriers>(1, threads, 0, stream.stream, y.data); }),
             ContainsSubstring("divergent: this thread is at the barrier at"));
  const std::string early =
      words([&] { launch<early_return>(1, threads, 0, stream.stream, y.data); });
  CHECK_THAT(early, ContainsSubstring("thread (3, 0, 0)"));
}

TEST_CASE("emulator_finds_absent_lanes_and_partial_masks") {
  const Stream stream;
  const DeviceFloats y(threads);
  CHECK_THAT(last_words([&] {
               launch<absent_lane>(1, 32, 0, stream.stream, y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("absent lane: 31 lanes of warp 0 wait at the shuffle at"));
  CHECK_THAT(last_words([&] {
               launch<half_mask>(1, 32, 0, stream.stream, y.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("only whole warps may shuffle"));
}

TEST_CASE("emulated_streams_do_nothing_until_somebody_waits") {
  const Stream copies, kernels;
  const std::vector<float> values = counted(threads);
  const DeviceFloats x(threads), y(threads);
  const auto run = [&](bool waits) {
    cudaEvent_t copied;
    cudaEventCreateWithFlags(&copied, cudaEventDisableTiming);
    cudaMemsetAsync(x.data, 0xff, 4 * threads, copies);
    cudaStreamSynchronize(copies);
    cudaMemcpyAsync(x.data, values.data(), 4 * threads, cudaMemcpyHostToDevice, copies);
    cudaEventRecord(copied, copies);
    if (waits) cudaStreamWaitEvent(kernels, copied, 0);
    launch<scale>(1, threads, 0, kernels.stream, x.data, 2.0f, y.data);
    const float first = y.read(kernels)[0];
    cudaStreamSynchronize(copies);
    cudaEventDestroy(copied);
    return first;
  };
  CHECK(run(true) == 2);
  CHECK(std::isnan(run(false)));
  // Without waiting for a copy to the host, nothing has arrived.
  std::vector<float> back(threads, 1.0f);
  cudaMemcpyAsync(back.data(), y.data, 4 * threads, cudaMemcpyDeviceToHost, kernels);
  CHECK(std::isnan(back[0]));
  cudaStreamSynchronize(kernels);
}

TEST_CASE("emulator_finds_wrong_memory") {
  const Stream stream;
  const DeviceFloats x(counted(threads), stream), y(threads), unset(threads);
  const auto words = [&](auto run) {
    return last_words([&] {
      run();
      cudaStreamSynchronize(stream);
    });
  };
  std::vector<float> host(threads);
  CHECK_THAT(words([&] { launch<scale>(1, threads, 0, stream.stream, host.data(), 1.0f, y.data); }),
             ContainsSubstring("scale: argument 1 holds a host pointer"));
  CHECK_THAT(words([&] { host[0] = x.data[1]; }),
             ContainsSubstring("host code uses device memory: byte 4 of a buffer of 256 bytes"));
  CHECK_THAT(words([&] {
               cudaFree(x.data);
               launch<scale>(1, threads, 0, stream.stream, x.data, 1.0f, y.data);
             }),
             ContainsSubstring("use after free: a device buffer of 256 bytes"));
  CHECK_THAT(words([&] {
               cudaFree(x.data);
               cudaFree(x.data);
             }),
             ContainsSubstring("which is free already"));
  CHECK_THAT(words([&] {
               cudaMemcpyAsync(y.data, host.data(), 4 * threads + 4, cudaMemcpyHostToDevice,
                               stream);
             }),
             ContainsSubstring("260 bytes leave a device buffer of 256 bytes"));
  CHECK_THAT(words([&] { launch<deep_recursion>(1, 32, 0, stream.stream, y.data); }),
             ContainsSubstring("stack overflows"));
  launch<scale>(1, threads, 0, stream.stream, unset.data, 1.0f, y.data);
  CHECK(std::isnan(y.read(stream)[0]));
}

TEST_CASE("emulated_copies_arrive_only_when_they_are_waited_for") {
  const Stream stream;
  const DeviceFloats x(counted(threads), stream), y(threads);
  launch<read_copy>(1, threads, 0, stream.stream, x.data, y.data, true);
  CHECK(y.read(stream) == counted(threads));
  launch<read_copy>(1, threads, 0, stream.stream, x.data, y.data, false);
  CHECK(std::isnan(y.read(stream)[0]));
  CHECK_THAT(last_words([&] {
               launch<forget_copy>(1, threads, 0, stream.stream, x.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("a thread ended with 1 copies that it never waited for"));
  CHECK_THAT(last_words([&] {
               launch<misaligned_copy>(1, threads, 0, stream.stream, x.data);
               cudaStreamSynchronize(stream);
             }),
             ContainsSubstring("is no multiple of 16 bytes"));
}

TEST_CASE("emulator_refuses_launches_that_a_gpu_refuses") {
  const Stream stream;
  const DeviceFloats y(threads);
  const auto words = [&](unsigned grid, unsigned block) {
    return last_words([&] { launch<scale>(grid, block, 0, stream.stream, y.data, 1.0f, y.data); });
  };
  CHECK_THAT(words(1, 48), ContainsSubstring("a multiple of 32, at most 1024"));
  CHECK_THAT(words(1, 2048), ContainsSubstring("a multiple of 32, at most 1024"));
  CHECK_THAT(words(0, 32), ContainsSubstring("a grid of (0, 1, 1) blocks"));
}
