// Each helper of ptx.cuh does what it promises: its plain branch on the emulator, the instruction
// itself on a GPU. The numbers are small and whole, so every sum is exact and must be met.
// What device.cuh promises of grids is here, too: files of nvcc alone can call it.
#include <numeric>

#include "core/cuda/device.cuh"
#include "core/cuda/ptx.cuh"
#include "tests/catch.h"
#include "tests/random_tensor.h"

namespace tapeformer::cuda {
namespace {

/// Whole numbers in [-8, 8].
std::vector<float> small_numbers(int64_t n, uint64_t seed) {
  const Tensor x = uniform_tensor({n}, -8.5, 8.5, seed);
  std::vector<float> numbers(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    numbers[static_cast<size_t>(i)] = static_cast<float>(std::round(x.data<double>()[i]));
  return numbers;
}

Tensor on_gpu(const std::vector<float>& x, DType dtype) {
  const Tensor low = Tensor::empty({static_cast<int64_t>(x.size())}, dtype, Device::cuda);
  kernels::copy(Tensor::from(x).to(Device::cuda), low);
  return low;
}

std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, int m, int n,
                           int k, std::vector<float> c) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

template <class T>
__device__ uint32_t pair(T first, T second) {
  return pair_of<T>(to_float(first), to_float(second));
}

// c [16, 8] += a [16, 16] b [16, 8], each number taken and put where the header says it belongs.
template <class T>
__global__ void mma_kernel(const T* a, const T* b, float* c) {
  const int group = threadIdx.x / 4, i = threadIdx.x % 4 * 2;
  const auto a_pair = [&](int row, int column) {
    return pair(a[16 * row + column], a[16 * row + column + 1]);
  };
  const auto b_pair = [&](int row) { return pair(b[8 * row + group], b[8 * (row + 1) + group]); };
  const uint32_t registers[4] = {a_pair(group, i), a_pair(group + 8, i), a_pair(group, i + 8),
                                 a_pair(group + 8, i + 8)};
  float* upper = c + 8 * group + i;
  float* lower = upper + 8 * 8;
  float sum[4] = {upper[0], upper[1], lower[0], lower[1]};
  mma_m16n8k16<T>(sum, registers, b_pair(i), b_pair(i + 8));
  upper[0] = sum[0];
  upper[1] = sum[1];
  lower[0] = sum[2];
  lower[1] = sum[3];
}

// loaded [4, 32] from the four matrices of x [32, 8].
template <bool transposed>
__global__ void ldmatrix_kernel(const int32_t* x, uint32_t* loaded) {
  SHARED(uint4, rows, [32]);  // of eight 16-bit numbers
  auto* numbers = reinterpret_cast<uint16_t*>(rows);
  for (unsigned i = threadIdx.x; i < 32 * 8; i += 32) numbers[i] = static_cast<uint16_t>(x[i]);
  __syncthreads();
  uint32_t registers[4];
  ldmatrix_x4<transposed>(registers, rows + threadIdx.x);
  for (int m = 0; m < 4; ++m) loaded[32 * m + threadIdx.x] = registers[m];
}

// to [2, 4, 32] = what is there of from [4, 32] when one group of copies may be on its way, and
// when none may. Odd threads do not want the second half of theirs.
__global__ void copy_kernel(const float* from, float* to) {
  SHARED(float4, arrived, [32]);
  const bool wanted = threadIdx.x % 2 == 0;
  auto* numbers = reinterpret_cast<float*>(arrived);
  arrived[threadIdx.x] = make_float4(-1, -1, -1, -1);
  __syncthreads();
  if (threadIdx.x < 16) start_copy<16>(arrived + threadIdx.x, from + 4 * threadIdx.x, wanted);
  end_group_of_copies();
  for (int i = 64 + threadIdx.x; i < 128; i += 32) start_copy<4>(numbers + i, from + i, wanted);
  end_group_of_copies();
  wait_for_copies<1>();
  __syncthreads();
  for (int i = threadIdx.x; i < 64; i += 32) to[i] = numbers[i];
  wait_for_copies<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < 128; i += 32) to[128 + i] = numbers[i];
}

// pairs [2]: of bf16, of f16.
__global__ void pairs_kernel(float bf16_first, float f16_first, float second, uint32_t* pairs) {
  if (threadIdx.x == 0) pairs[0] = pair_of<bf16>(bf16_first, second);
  if (threadIdx.x == 1) pairs[1] = pair_of<f16>(f16_first, second);
}

__global__ void exp2_kernel(const float* x, float* y) {
  y[threadIdx.x] = fast_exp2(x[threadIdx.x]);
}

__global__ void exp_kernel(const float* x, float* y) { y[threadIdx.x] = fast_exp(x[threadIdx.x]); }

// to [32, 4] = what each thread makes of its number.
__global__ void store_kernel(uint32_t* to) {
  const uint32_t x = threadIdx.x;
  store_16_bytes(to + 4 * x, {x, x + 100, x + 200, x + 300});
}

}  // namespace

TEST_CASE("ptx_stores_write_16_bytes_in_their_order") {
  const Tensor to = Tensor::full({33, 4}, -1, DType::i32, Device::cuda);
  launch<store_kernel>(1, 32, 0, stream(), static_cast<uint32_t*>(to.raw()));
  std::vector<int32_t> expected;
  for (int x = 0; x < 32; ++x) expected.insert(expected.end(), {x, x + 100, x + 200, x + 300});
  expected.insert(expected.end(), 4, -1);
  CHECK(to.to_vector<int32_t>() == expected);
}

TEST_CASE("ptx_exp2_is_2_to_the_x_within_two_units_in_the_last_place") {
  std::vector<float> x = {-INFINITY, 0, -0.0f, 1, -1, -126, -127, -1000, 127, 128, NAN};
  for (float at = -30; x.size() < 64; at += 0.6f) x.push_back(at);
  const Tensor y = Tensor::empty({64}, DType::f32, Device::cuda);
  launch<exp2_kernel>(1, 64, 0, stream(), in<float>(on_gpu(x, DType::f32)), out<float>(y));
  const std::vector<float> got = y.to_vector<float>();
  for (size_t i = 0; i < x.size(); ++i) {
    INFO("2^" << x[i]);
    const double expected = std::exp2(static_cast<double>(x[i]));
    if (std::isnan(x[i]))
      CHECK(std::isnan(got[i]));
    else if (expected < 0x1p-126 || expected >= 0x1p128)
      CHECK(got[i] == (x[i] < 0 ? 0 : INFINITY));
    else
      CHECK(std::abs(got[i] - expected) <= 2 * 0x1p-23 * expected);
  }
}

TEST_CASE("ptx_exp_of_numbers_below_0_is_off_by_what_it_says") {
  std::vector<float> x = {-INFINITY, 0, -0.0f, -1, -1e-6f, -87, -88, -1000, -FLT_MAX, NAN};
  for (float at = -80; x.size() < 64; at += 1.49f) x.push_back(at);
  const Tensor y = Tensor::empty({64}, DType::f32, Device::cuda);
  launch<exp_kernel>(1, 64, 0, stream(), in<float>(on_gpu(x, DType::f32)), out<float>(y));
  const std::vector<float> got = y.to_vector<float>();
  for (size_t i = 0; i < x.size(); ++i) {
    INFO("e^" << x[i]);
    const double expected = std::exp(static_cast<double>(x[i]));
    if (std::isnan(x[i]))
      CHECK(std::isnan(got[i]));
    else if (expected < 0x1p-126)
      CHECK(got[i] == 0);
    else
      CHECK(std::abs(got[i] - expected) <= (std::abs(x[i]) + 2) * 0x1p-23 * expected);
  }
}

TEST_CASE("cuda_grids_have_no_more_blocks_than_a_launch_takes") {
  CHECK(blocks_for(int64_t{1} << 31, 2) == 1u << 30);
  CHECK(grid_of(INT32_MAX) == INT32_MAX);
  CHECK_THROWS_WITH(blocks_for(int64_t{1} << 40, 256), ContainsSubstring("got 4294967296"));
}

TEST_CASE("ptx_mma_is_the_matrix_product") {
  const auto a = small_numbers(16 * 16, 1), b = small_numbers(16 * 8, 2),
             c = small_numbers(16 * 8, 3);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    INFO(dtype);
    const Tensor low_a = on_gpu(a, dtype), low_b = on_gpu(b, dtype), sum = on_gpu(c, DType::f32);
    if (dtype == DType::bf16)
      launch<mma_kernel<bf16>>(1, 32, 0, stream(), in<bf16>(low_a), in<bf16>(low_b),
                               out<float>(sum));
    else
      launch<mma_kernel<f16>>(1, 32, 0, stream(), in<f16>(low_a), in<f16>(low_b), out<float>(sum));
    CHECK(sum.to_vector<float>() == product(a, b, 16, 8, 16, c));
  }
}

TEST_CASE("ptx_ldmatrix_hands_out_matrices_and_their_transposes") {
  std::vector<int32_t> x(32 * 8);
  std::iota(x.begin(), x.end(), 1000);
  const Tensor numbers = Tensor::from(x).to(Device::cuda);
  for (const bool transposed : {false, true}) {
    INFO("transposed " << transposed);
    const Tensor loaded = Tensor::empty({4 * 32}, DType::i32, Device::cuda);
    auto* to = static_cast<uint32_t*>(loaded.raw());
    if (transposed)
      launch<ldmatrix_kernel<true>>(1, 32, 0, stream(), in<int32_t>(numbers), to);
    else
      launch<ldmatrix_kernel<false>>(1, 32, 0, stream(), in<int32_t>(numbers), to);
    std::vector<int32_t> expected;
    for (int m = 0; m < 4; ++m)
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2, step = transposed ? 8 : 1;
        const int at = 64 * m + (transposed ? 8 * column + row : 8 * row + column);
        expected.push_back(x[at] | x[at + step] << 16);
      }
    CHECK(loaded.to_vector<int32_t>() == expected);
  }
}

TEST_CASE("ptx_copies_have_arrived_when_they_were_waited_for") {
  const auto x = small_numbers(128, 1);
  const Tensor from = on_gpu(x, DType::f32), to = on_gpu(std::vector<float>(256, 99), DType::f32);
  launch<copy_kernel>(1, 32, 0, stream(), in<float>(from), out<float>(to));
  const std::vector<float> arrived = to.to_vector<float>();
  for (int i = 0; i < 128; ++i) {
    INFO("number " << i);
    const bool wanted = i < 64 ? i / 4 % 2 == 0 : i % 2 == 0;
    if (i < 64) CHECK(arrived[i] == (wanted ? x[i] : 0));
    CHECK(arrived[128 + i] == (wanted ? x[i] : 0));
  }
}

TEST_CASE("ptx_pairs_are_rounded_and_begin_with_the_lower_half") {
  // 1 + 2^-9 lies between two neighbours of bf16, nearer to 1; 2^-12 likewise in f16.
  const Tensor pairs = Tensor::empty({2}, DType::i32, Device::cuda);
  launch<pairs_kernel>(1, 32, 0, stream(), 1 + 0x1p-9f, 1 + 0x1p-12f, -2.0f,
                       static_cast<uint32_t*>(pairs.raw()));
  const std::vector<int32_t> got = pairs.to_vector<int32_t>();
  CHECK(static_cast<uint32_t>(got[0]) == 0xc0003f80u);
  CHECK(static_cast<uint32_t>(got[1]) == 0xc0003c00u);
}

}  // namespace tapeformer::cuda
