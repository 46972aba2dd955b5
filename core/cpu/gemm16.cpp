// The product of bf16 matrices after Goto and van de Geijn (Anatomy of High-Performance Matrix
// Multiplication, 2008): a block of a is packed into panels that stay in the second-level cache,
// then each panel of b is packed and multiplied with all of them. A panel's step holds 32 bits for
// each of its rows or columns: for `dot` the bf16 of k and of k + 1, for `multiply_add` one k as a
// float. But for that, the two are the same code.
#include "core/cpu/gemm16.h"

#include <algorithm>
#include <type_traits>

#include "core/cpu/scratch.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#if !defined(__clang__) && __GNUC__ < 13  // its own header reads what it leaves unset: bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace tapeformer::cpu {
namespace {

// Slots of thread_scratch().
constexpr int for_a = 1, for_b = 2, for_sums = 3;

// `size` in the fewest equal pieces of at most `longest`, as a multiple of `step`.
int64_t piece_of(int64_t size, int64_t longest, int64_t step) {
  const int64_t pieces = std::max<int64_t>((size + longest - 1) / longest, 1);
  return ((size + pieces - 1) / pieces + step - 1) / step * step;
}

// c = alpha sums + beta c, n elements.
template <class C>
inline void write_row(int64_t n, const float* sums, float alpha, float beta, C* c) {
  if (beta == 0) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) c[j] = alpha * sums[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) c[j] = alpha * sums[j] + beta * c[j];
  }
}

// ---------------------------------------------------------------- any processor

// out [rows, columns] = x, whose rows lie `stride` apart.
template <class H>
void to_floats(int64_t rows, int64_t columns, const H* x, int64_t stride, float* out) {
  for (int64_t i = 0; i < rows; ++i, x += stride, out += columns) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) out[j] = x[j];
  }
}

template <class H>
void convert_product(const Gemm& g, const H* a, const H* b, float* c) {
  const int64_t block = piece_of(g.k, 512, 1);
  float *fa = thread_scratch<float, for_a>(g.m * block),
        *fb = thread_scratch<float, for_b>(block * g.n);
  Gemm part = g;
  int64_t l = 0;
  do {
    part.k = std::min(block, g.k - l);
    part.lda = std::max<int64_t>(g.transpose_a ? g.m : part.k, 1);
    part.ldb = std::max<int64_t>(g.transpose_b ? part.k : g.n, 1);
    if (g.transpose_a)
      to_floats(part.k, g.m, a + l * g.lda, g.lda, fa);
    else
      to_floats(g.m, part.k, a + l, g.lda, fa);
    if (g.transpose_b)
      to_floats(g.n, part.k, b + l, g.ldb, fb);
    else
      to_floats(part.k, g.n, b + l * g.ldb, g.ldb, fb);
    gemm_serial(part, fa, fb, c);
    part.beta = 1;
  } while ((l += block) < g.k);
}

// ---------------------------------------------------------------- AVX-512

#if defined(__x86_64__)

// One set of instructions for all: those of avx512bf16 come only where they are asked for.
#define TAPEFORMER_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]]

constexpr int64_t lanes = 16;       // of 32 bits in a vector
constexpr int64_t panel_rows = 14;  // by two vectors of columns: 28 sums in 32 registers
constexpr int64_t panel_columns = 2 * lanes;
constexpr int64_t longest_panel = 384;  // steps: a panel of b takes 48 KB
constexpr int64_t longest_block = 588;  // rows of a: their panels take up to 1 MB

// Sixteen rows of sixteen become columns.
TAPEFORMER_AVX512 inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // x[4 r + i] holds, in quarter q, column 4 q + i of rows 4 r to 4 r + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

// Rows of op(a) or columns of op(b), up to sixteen: what becomes the lanes of a panel.
struct Lanes {
  const bf16* x;
  int64_t count;
  int64_t stride;   // from one to the next or, where they lie side by side, from k to k + 1
  bool contiguous;  // they lie side by side
};

// Where the lanes lie side by side, a step is a load. Lanes from `count` on become zero, as does
// the partner of an odd last k.
template <bool dot>
TAPEFORMER_AVX512 void pack_contiguous(const Lanes& from, int64_t k, uint32_t* out, int64_t step) {
  const auto mask = static_cast<__mmask16>((1u << from.count) - 1);
  const bf16* x = from.x;
  for (int64_t l = 0; l < k; l += dot ? 2 : 1, out += step) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
    x += from.stride;
    if constexpr (!dot) {
      words = _mm512_slli_epi32(words, 16);
    } else if (l + 1 < k) {
      const __m512i next = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
      words = _mm512_or_si512(words, _mm512_slli_epi32(next, 16));
      x += from.stride;
    }
    _mm512_store_si512(out, words);
  }
}

// Where k runs along a row of memory, pairs of k are transposed as words. Writes whole groups of
// 32 k, zeros behind the last.
template <bool dot>
TAPEFORMER_AVX512 void pack_transposed(const Lanes& from, int64_t k, uint32_t* out, int64_t step) {
  for (int64_t l = 0; l < k; l += 32) {
    const auto mask = static_cast<__mmask32>(k - l < 32 ? (1u << (k - l)) - 1 : ~0u);
    __m512i pairs[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      pairs[i] = i < from.count ? _mm512_maskz_loadu_epi16(mask, from.x + i * from.stride + l)
                                : _mm512_setzero_si512();
    transpose(pairs);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i, out += step) {
      if constexpr (dot) {
        _mm512_store_si512(out, pairs[i]);
      } else {
        _mm512_store_si512(out, _mm512_slli_epi32(pairs[i], 16));
        out += step;
        _mm512_store_si512(out, _mm512_and_si512(pairs[i], _mm512_set1_epi32(-0x10000)));
      }
    }
  }
}

// `step`: words from one step to the next.
template <bool dot>
void pack(const Lanes& from, int64_t k, uint32_t* out, int64_t step) {
  if (from.contiguous)
    pack_contiguous<dot>(from, k, out, step);
  else
    pack_transposed<dot>(from, k, out, step);
}

// A vector of c from its sums: c = alpha sum + beta c in the lanes of `mask`.
TAPEFORMER_AVX512 inline void store(__m512 sum, float alpha, float beta, __mmask16 mask, float* c) {
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(alpha));
  if (beta != 0) sum = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, c), sum);
  _mm512_mask_storeu_ps(c, mask, sum);
}
TAPEFORMER_AVX512 inline void store(__m512 sum, float alpha, float beta, __mmask16 mask, bf16* c) {
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(alpha));
  if (beta != 0) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c));
    const __m512 before = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    sum = _mm512_fmadd_ps(_mm512_set1_ps(beta), before, sum);
  }
  // As bf16's constructor rounds.
  const __m512i bits = _mm512_castps_si512(sum), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
  _mm256_mask_storeu_epi16(c, mask, _mm512_cvtepi32_epi16(result));
}

// Rows of c [.., columns], at most as many as `height`, from a panel of a and one of b.
template <bool dot, int height, class C>
TAPEFORMER_AVX512 void multiply(const Gemm& g, int64_t rows, int64_t columns, const uint32_t* a,
                                const uint32_t* b, C* c) {
  __m512 sum[height][2];
#pragma GCC unroll 14
  for (int i = 0; i < height; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  const int64_t steps = dot ? (g.k + 1) / 2 : g.k;
  for (int64_t step = 0; step < steps; ++step, a += lanes, b += panel_columns) {
    const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + lanes);
#pragma GCC unroll 14
    for (int i = 0; i < height; ++i) {
      const __m512i ai = _mm512_set1_epi32(static_cast<int>(a[i]));
      if constexpr (dot) {
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], (__m512bh)ai, (__m512bh)b0);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], (__m512bh)ai, (__m512bh)b1);
      } else {
        const __m512 factor = _mm512_castsi512_ps(ai);
        sum[i][0] = _mm512_fmadd_ps(factor, _mm512_castsi512_ps(b0), sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(factor, _mm512_castsi512_ps(b1), sum[i][1]);
      }
    }
  }
  const auto mask = static_cast<uint32_t>((uint64_t{1} << columns) - 1);
  const auto alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
#pragma GCC unroll 14
  for (int i = 0; i < height; ++i) {
    if (i >= rows) continue;
    store(sum[i][0], alpha, beta, static_cast<__mmask16>(mask), c + i * g.ldc);
    if (columns > lanes)
      store(sum[i][1], alpha, beta, static_cast<__mmask16>(mask >> lanes), c + i * g.ldc + lanes);
  }
}

// One block of k: c [m, n] = alpha a b + beta c for the rows whose panels, `panel` words each, are
// packed. b is packed here, panel by panel.
template <bool dot, class C>
void multiply_block(const Gemm& g, const uint32_t* a_panels, int64_t panel, const bf16* b, C* c) {
  uint32_t* b_panel = thread_scratch<uint32_t, for_b>(2 * panel);
  for (int64_t j = 0; j < g.n; j += panel_columns) {
    const int64_t columns = std::min(g.n - j, panel_columns);
    for (int64_t half = 0; half < panel_columns; half += lanes) {
      const int64_t count = std::clamp<int64_t>(columns - half, 0, lanes);
      const bf16* x = count ? b + (j + half) * (g.transpose_b ? g.ldb : 1) : b;
      pack<dot>({x, count, g.ldb, !g.transpose_b}, g.k, b_panel + half, panel_columns);
    }
    for (int64_t i = 0; i < g.m; i += panel_rows) {
      const int64_t rows = std::min(g.m - i, panel_rows);
      const uint32_t* a_panel = a_panels + i / panel_rows * panel;
      C* out = c + i * g.ldc + j;
      for (int64_t row = 0; row < rows; ++row)  // both ends: a row of 32 floats is two lines
        for (const int64_t at : {0, 16}) __builtin_prefetch(out + row * g.ldc + at, 1);
      if (rows <= 4)
        multiply<dot, 4>(g, rows, columns, a_panel, b_panel, out);
      else if (rows <= 8)
        multiply<dot, 8>(g, rows, columns, a_panel, b_panel, out);
      else
        multiply<dot, panel_rows>(g, rows, columns, a_panel, b_panel, out);
    }
  }
}

// Of the sums over several blocks of k, c holds the part so far.
template <bool dot, class C>
void packed_product(const Gemm& g, const bf16* a, const bf16* b, C* c) {
  const int64_t block = piece_of(g.k, dot ? 2 * longest_panel : longest_panel, 32);
  const int64_t panel = lanes * (dot ? block / 2 : block);
  const int64_t height = piece_of(g.m, longest_block, panel_rows);
  uint32_t* a_panels = thread_scratch<uint32_t, for_a>(height / panel_rows * panel);
  Gemm part = g;
  int64_t l = 0;
  do {
    part.k = std::min(block, g.k - l);
    for (int64_t top = 0; top < g.m; top += height) {
      part.m = std::min(height, g.m - top);
      for (int64_t i = 0; i < part.m; i += panel_rows) {
        const bf16* x = g.transpose_a ? a + l * g.lda + top + i : a + (top + i) * g.lda + l;
        pack<dot>({x, std::min(part.m - i, panel_rows), g.lda, g.transpose_a}, part.k,
                  a_panels + i / panel_rows * panel, lanes);
      }
      multiply_block<dot>(part, a_panels, panel, b + l * (g.transpose_b ? 1 : g.ldb),
                          c + top * g.ldc);
    }
    part.beta = 1;
  } while ((l += block) < g.k);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_dot() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
// Of Intel's processors, those since Sapphire Rapids start a dot product every other cycle and two
// multiply-adds in each, which makes f32 twice as fast: AMX is meant to do their bf16.
bool has_fast_dot() {
  return has_dot() && (!__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"));
}

#pragma GCC diagnostic pop
#endif

// The k up to which `way` needs c for nothing but the result.
int64_t longest_sum([[maybe_unused]] Bf16Way way) {
#if defined(__x86_64__)
  if (way == Bf16Way::dot) return 2 * longest_panel;
  if (way == Bf16Way::multiply_add) return longest_panel;
#endif
  return -1;
}

// Sums that do not stay in registers are not rounded on the way: product(gemm, sums) leaves them in
// memory first.
template <class H, class F>
void round_sums(const Gemm& g, H* c, const F& product) {
  float* sums = thread_scratch<float, for_sums>(g.m * g.n);
  Gemm whole = g;
  whole.ldc = g.n;
  whole.alpha = 1;
  whole.beta = 0;
  product(whole, sums);
  for (int64_t i = 0; i < g.m; ++i) write_row(g.n, sums + i * g.n, g.alpha, g.beta, c + i * g.ldc);
}

}  // namespace

bool available([[maybe_unused]] Bf16Way way) {
#if defined(__x86_64__)
  if (way == Bf16Way::dot) return has_dot();
  if (way == Bf16Way::multiply_add) return has_avx512();
#endif
  return way == Bf16Way::convert;
}

Bf16Way bf16_way() {
#if defined(__x86_64__)
  static const Bf16Way way = has_fast_dot() ? Bf16Way::dot
                             : has_avx512() ? Bf16Way::multiply_add
                                            : Bf16Way::convert;
  return way;
#else
  return Bf16Way::convert;
#endif
}

template <class C>
void gemm_serial(const Gemm& g, const bf16* a, const bf16* b, C* c, Bf16Way way) {
  if (g.m == 0 || g.n == 0) return;
  if constexpr (std::is_same_v<C, bf16>)
    if (g.k > longest_sum(way))
      return round_sums(
          g, c, [=](const Gemm& whole, float* sums) { gemm_serial(whole, a, b, sums, way); });
#if defined(__x86_64__)
  if (way == Bf16Way::dot) return packed_product<true>(g, a, b, c);
  if (way == Bf16Way::multiply_add) return packed_product<false>(g, a, b, c);
#endif
  if constexpr (std::is_same_v<C, float>) convert_product(g, a, b, c);
}

template <class C>
void gemm_serial(const Gemm& g, const f16* a, const f16* b, C* c) {
  if (g.m == 0 || g.n == 0) return;
  if constexpr (std::is_same_v<C, float>)
    convert_product(g, a, b, c);
  else
    round_sums(g, c, [=](const Gemm& whole, float* sums) { convert_product(whole, a, b, sums); });
}

template void gemm_serial(const Gemm&, const bf16*, const bf16*, float*, Bf16Way);
template void gemm_serial(const Gemm&, const bf16*, const bf16*, bf16*, Bf16Way);
template void gemm_serial(const Gemm&, const f16*, const f16*, float*);
template void gemm_serial(const Gemm&, const f16*, const f16*, f16*);

}  // namespace tapeformer::cpu
