// Rows of a matrix, each held in the registers of a group of threads: a warp for short rows, a
// block for long ones. So a row is read from memory once, however often a kernel needs it.
#pragma once

#include <bit>
#include <cfloat>

#include "core/cuda/pack.cuh"
#include "core/cuda/sums.cuh"

namespace tapeformer::cuda {

/// A warp, or a block of at most `most_threads`, holds a row, `items` elements for each thread, in
/// runs of n that lie together: thread t has those that begin at n t, n (t + threads()), ...
template <int most_threads, int items_, int n_>
struct RowLayout {
  static constexpr bool warp = most_threads == 32;
  static constexpr int items = items_, n = n_, runs = items / n;
  static_assert(items % n == 0);
  /// Whether Held reads all that it holds at once; see there.
  static constexpr bool early = warp || n > 1;
  /// A block takes one row, or four, a warp for each.
  static constexpr int rows = warp ? 4 : 1, most_block = rows * most_threads;
  /// Its threads for rows of C, of which hardly any idles.
  static unsigned block(int64_t C) { return warp ? most_block : 32 * blocks_for(C, 32 * items); }

  __device__ static int threads() { return warp ? 32 : blockDim.x; }
  __device__ static int thread() { return warp ? threadIdx.x % 32 : threadIdx.x; }
  /// The row of this group, when groups take rows in turn.
  __device__ static size_t first_row() {
    return warp ? size_t{blockIdx.x} * rows + threadIdx.x / 32 : blockIdx.x;
  }

  /// Over the row's threads, for all of them.
  template <int K>
  __device__ static void sum(float (&x)[K]) {
    if constexpr (warp)
      for (float& value : x) value = warp_sum(value);
    else
      block_sum(x);
  }
  __device__ static float sum(float x) { return warp ? warp_sum(x) : block_sum(x); }
  __device__ static float max(float x) { return warp ? warp_max(x) : block_max(x); }

  /// Where the k-th run of this thread begins.
  __device__ static int begin(int k) { return n * (thread() + k * threads()); }
  /// Calls f(k, i) for the k-th run that this thread holds of a row of C: elements i ... i + n - 1.
  template <class F>
  __device__ static void for_each(int C, const F& f) {
#pragma unroll
    for (int k = 0; k < runs; ++k)
      if (const int i = begin(k); i < C) f(k, i);
  }
  /// Calls f(k, j) for element j of run k; where loads are early, also beyond the row's end.
  template <class F>
  __device__ static void for_all(int C, const F& f) {
#pragma unroll
    for (int k = 0; k < runs; ++k)
      if (early || begin(k) < C)
#pragma unroll
        for (int j = 0; j < n; ++j) f(k, j);
  }
};

/// What a thread holds of the row of C that begins at rows[at]: zeros beyond the row's end, and
/// where `rows` is null. All loads are under way before any is waited for, and two numbers of 16
/// bits share a register until they are used. But the single numbers of long rows would take too
/// many: each is read where it is used.
template <class Row, class T>
class Held {
 public:
  __device__ Held(const T* rows, size_t at, int C) : rows_(rows), at_(at), C_(C) {
    if (Row::early && rows)
      Row::for_each(C, [&](int k, int i) {
        runs_[k] = load<words>(reinterpret_cast<const Word*>(rows + at + i));
      });
  }
  /// Element j of run k.
  __device__ float operator()(int k, int j) const {
    if (!Row::early) return rows_ && Row::begin(k) < C_ ? to_float(rows_[at_ + Row::begin(k)]) : 0;
    const Word word = runs_[k].at[j / in_word];
    return to_float(std::bit_cast<T>(static_cast<Bits>(word >> (j % in_word * 16))));
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  using Word = std::conditional_t<Row::n == 1, Bits, uint32_t>;
  static constexpr int in_word = sizeof(Word) / sizeof(T), words = Row::n / in_word;
  const T* rows_;
  size_t at_;
  int C_;
  Pack<Word, words> runs_[Row::runs] = {};
};

/// Whether rows of C elements of T are whole packs in all of these, of which some may be undefined.
template <class T>
bool packed_rows(int64_t C, std::initializer_list<Tensor> rows) {
  bool whole = packed(pack_of<T>, {C}, {});
  for (const Tensor& x : rows) whole = whole && packed({in<T>(x)});
  return whole;
}

/// The longest row that a block's registers hold.
inline constexpr int64_t longest_row = 8192;

/// Calls f(RowLayout) with the smallest that holds C elements, in packs where `rows`, of which some
/// may be undefined, allow it. The order of a row's sums, and so their last bits, depends on
/// whether `rows` begin on packs; Parameters and allocations always do.
template <class T, class F>
void dispatch_row(const char* operation, int64_t C, std::initializer_list<Tensor> rows,
                  const F& f) {
  check(C <= longest_row, operation, ": on a GPU rows have at most ", longest_row,
        " elements, got ", C, "; use the CPU");
  const auto of = [&](auto n) {
    if (C <= 256) return f(RowLayout<32, 8, n>{});
    if (C <= 768) return f(RowLayout<32, 24, n>{});
    f(RowLayout<longest_row / 16, 16, n>{});
  };
  if (packed_rows<T>(C, rows)) return of(std::integral_constant<int, pack_of<T>>{});
  of(std::integral_constant<int, 1>{});
}

}  // namespace tapeformer::cuda
