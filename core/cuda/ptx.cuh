// Instructions that CUDA C++ has no words for, the only inline PTX: 2^x as the GPU itself computes
// it, a store of 16 bytes, the tensor cores' product, the load that feeds them, and copies to
// shared memory that run beside the computation. On the emulator each is a plain branch that does,
// lane by lane, what the PTX ISA says ("Floating Point Instructions: ex2", "Warp Level Matrix
// Multiply Instructions", "Data Movement and Conversion Instructions: Non-bulk copy").
//
// In what follows lane l of a warp has the group g = l / 4 and in it the place i = l % 4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/cuda/launch.cuh"

namespace tapeformer::cuda {

// ---------------------------------------------------------------- pairs of 16-bit numbers

/// Two numbers, rounded to T (bf16 or f16), in one register: `first` in its lower half.
template <class T>
__device__ inline uint32_t pair_of(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(first, second);
    std::memcpy(&pair, &rounded, sizeof pair);
  } else {
    static_assert(std::is_same_v<T, __half>);
    const __half2 rounded = __floats2half2_rn(first, second);
    std::memcpy(&pair, &rounded, sizeof pair);
  }
  return pair;
}

#ifdef TAPEFORMER_CUDA_EMULATED
/// a0 b0 + a1 b1 of two pairs, in f32.
template <class T>
float dot_of_pairs(uint32_t a, uint32_t b) {
  const auto x = std::bit_cast<std::array<T, 2>>(a), y = std::bit_cast<std::array<T, 2>>(b);
  return static_cast<float>(x[0]) * static_cast<float>(y[0]) +
         static_cast<float>(x[1]) * static_cast<float>(y[1]);
}
#endif

// ---------------------------------------------------------------- numbers

/// 2^x to 2 units in the last place, one instruction; what is below the normal numbers becomes 0.
__device__ inline float fast_exp2(float x) {
#ifdef TAPEFORMER_CUDA_EMULATED
  const float y = std::exp2(x);
  return y < FLT_MIN ? 0 : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

inline constexpr float log2_of_e = 1.4426950408889634f;
/// e^x for x <= 0, off by at most (|x| + 2) 2^-23 of it; what is below the normal numbers becomes
/// 0.
__device__ inline float fast_exp(float x) { return fast_exp2(x * log2_of_e); }

// ---------------------------------------------------------------- 16 bytes

/// Faults on the emulator where `data` does not begin at a multiple of `bytes`, as an access there
/// does on a GPU.
__device__ inline void expect_aligned([[maybe_unused]] const char* what,
                                      [[maybe_unused]] const void* data,
                                      [[maybe_unused]] size_t bytes) {
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::check_aligned(what, data, bytes);
#endif
}

/// Writes 16 bytes of global memory, at a multiple of 16, in one access. nvcc takes several for the
/// copy of a structure, where a part of it is known earlier than another.
__device__ inline void store_16_bytes(void* to, uint4 words) {
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::check_aligned("store_16_bytes", to, 16);
  std::memcpy(to, &words, sizeof words);
#else
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
#endif
}

// ---------------------------------------------------------------- products

/// c [16, 8] += a [16, 16] b [16, 8] by a warp; a and b of T (bf16 or f16), c and the sums in f32.
/// A lane holds, as (row, column),
///   a: (g, 2i), (g + 8, 2i), (g, 2i + 8), (g + 8, 2i + 8), each with its right neighbour;
///   b: (2i, g), (2i + 8, g), each with the number below it;
///   c: (g, 2i), (g, 2i + 1), (g + 8, 2i), (g + 8, 2i + 1).
template <class T>
__device__ inline void mma_m16n8k16(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef TAPEFORMER_CUDA_EMULATED
  const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
  // Lanes of place k hold the inner indices 2k, 2k + 1, 2k + 8 and 2k + 9.
  for (int k = 0; k < 4; ++k) {
    uint32_t row[4];
    for (int n = 0; n < 4; ++n) row[n] = __shfl_sync(0xffffffffu, a[n], 4 * group + k);
    for (int n = 0; n < 2; ++n) {
      const int column = 4 * (2 * place + n) + k;  // the lane that has this part of column 2i + n
      const uint32_t upper = __shfl_sync(0xffffffffu, b0, column);
      const uint32_t lower = __shfl_sync(0xffffffffu, b1, column);
      c[n] += dot_of_pairs<T>(row[0], upper) + dot_of_pairs<T>(row[2], lower);
      c[n + 2] += dot_of_pairs<T>(row[1], upper) + dot_of_pairs<T>(row[3], lower);
    }
  }
#else
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Loads four 8 x 8 matrices of 16-bit numbers from shared memory by a warp: lane l gives the
/// address, a multiple of 16 bytes, of row l % 8 of matrix l / 8. A lane receives of each matrix
/// the numbers (g, 2i) and (g, 2i + 1); when `transposed`, (2i, g) and (2i + 1, g).
template <bool transposed>
__device__ inline void ldmatrix_x4(uint32_t (&loaded)[4], const void* row) {
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::check_aligned("ldmatrix", row, 16);
  const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int n = 0; n < 2; ++n) {
      const int from = transposed ? 2 * place + n : group, at = transposed ? group : 2 * place + n;
      const auto* numbers =
          static_cast<const uint16_t*>(__shfl_sync(0xffffffffu, row, 8 * m + from));
      pair[n] = numbers[at];
    }
    std::memcpy(&loaded[m], pair, sizeof pair);
  }
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded[0]), "=r"(loaded[1]), "=r"(loaded[2]), "=r"(loaded[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded[0]), "=r"(loaded[1]), "=r"(loaded[2]), "=r"(loaded[3])
                 : "r"(address)
                 : "memory");
#endif
}

// ---------------------------------------------------------------- copies

/// Starts copying 4 or 16 bytes, at multiples of that, from device to shared memory; zeros are
/// written where they are not `wanted`, and nothing is read.
template <int bytes>
__device__ inline void start_copy(void* shared, const void* from, bool wanted) {
  static_assert(bytes == 4 || bytes == 16);
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::start_copy(shared, from, bytes, wanted);
#else
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int reads = wanted ? bytes : 0;
  if constexpr (bytes == 16)  // past the first cache, which these bytes would only pass through
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(reads)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(reads)
                 : "memory");
#endif
}

/// The copies that this thread started since the last call become a group.
__device__ inline void end_group_of_copies() {
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::end_group_of_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most `left` of this thread's groups of copies are unfinished. Other threads see
/// what was copied after a barrier.
template <int left>
__device__ inline void wait_for_copies() {
#ifdef TAPEFORMER_CUDA_EMULATED
  cuda_emulator::wait_for_copies(left);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

}  // namespace tapeformer::cuda
