// What the attention kernels on tensor cores share. They take 16-bit rows and heads of 32, 64 or
// 128 channels; the rest goes to the kernels of attention.cu and attention_backward.cu.
//
// A block of four warps owns 64 or 128 rows, each warp 16 or 32 of them, which stay with it: sums
// over what meets these rows never leave the warp. Of a sum [rows, n] of a warp a lane holds rows
// g, g + 8, ... and, in every 8 columns, 2i and 2i + 1, where g = lane / 4 and i = lane % 4: as
// numbers c[column / 8][2 (row / 8) + column % 2], four for each product of ptx.cuh.
#pragma once

#include "core/cuda/attention.cuh"
#include "core/cuda/ptx.cuh"

namespace tapeformer::cuda {

inline constexpr int mma_threads = 128, mma_warps = mma_threads / 32;

/// The first of a warp's rows.
template <int rows>
__device__ int first_row_of_warp() {
  return threadIdx.x / 32 * rows;
}

// ---------------------------------------------------------------- tiles of rows

/// Elements between the rows of a tile. With 16 bytes more than the row has, the eight pieces of
/// 16 bytes that ldmatrix fetches at a time lie in different banks.
template <int D>
inline constexpr int mma_pitch = D + 8;

/// Starts copying rows [first, first + count) of a head to a tile; rows from `rows` on become zero.
template <int D, int count, class T>
__device__ void start_tile(T* tile, const HeadRows<T>& heads, int b, int h, int first, int rows) {
  constexpr int pieces = D / 8;               // of 16 bytes, in a row
  constexpr int step = mma_threads / pieces;  // rows at a time
  const int row = threadIdx.x / pieces, d = threadIdx.x % pieces * 8;
  const int left = rows - first - row;
  const T* from = heads.row(b, first + row, h, D) + d;
  tile += row * mma_pitch<D> + d;
#pragma unroll
  for (int i = 0; i < count; i += step, from += step * heads.row_stride)
    start_copy<16>(tile + i * mma_pitch<D>, from, i < left);
}

/// The 16 x 16 numbers whose first is at `corner` of a tile, as four matrices: rows 0 ... 7 and
/// 8 ... 15 of columns 0 ... 7, then of columns 8 ... 15. Not transposed that is an a of mma.
template <int D, bool transposed = false, class T>
__device__ void load_square(uint32_t (&square)[4], const T* corner) {
  const int lane = threadIdx.x % 32;
  ldmatrix_x4<transposed>(square, corner + lane % 16 * mma_pitch<D> + lane / 16 * 8);
}

// ---------------------------------------------------------------- products

/// c [16 m, 8 n] += a [16 m, 16] t^T, where t [8 n, 16] are numbers of a tile.
template <int D, class T, int n, int m>
__device__ void add_product_transposed(float (&c)[n][4 * m], const uint32_t (&a)[m][4],
                                       const T* t) {
  // The matrices come row by row, other than in load_square: so the two of one b are neighbours,
  // which mma's registers have to be.
  const int lane = threadIdx.x % 32;
  t += (lane / 16 * 8 + lane % 8) * mma_pitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int j = 0; j < n / 2; ++j) {
    uint32_t b[4];
    ldmatrix_x4<false>(b, t + 16 * j * mma_pitch<D>);
#pragma unroll
    for (int i = 0; i < m; ++i) {
      mma_m16n8k16<T>(c[2 * j] + 4 * i, a[i], b[0], b[1]);
      mma_m16n8k16<T>(c[2 * j + 1] + 4 * i, a[i], b[2], b[3]);
    }
  }
}

/// c [16 m, 8 n] += a [16 m, 16] t, where t [16, 8 n] are numbers of a tile.
template <int D, class T, int n, int m>
__device__ void add_product(float (&c)[n][4 * m], const uint32_t (&a)[m][4], const T* t) {
#pragma unroll
  for (int j = 0; j < n / 2; ++j) {
    uint32_t b[4];
    load_square<D, true>(b, t + 16 * j);
#pragma unroll
    for (int i = 0; i < m; ++i) {
      mma_m16n8k16<T>(c[2 * j] + 4 * i, a[i], b[0], b[1]);
      mma_m16n8k16<T>(c[2 * j + 1] + 4 * i, a[i], b[2], b[3]);
    }
  }
}

/// The rows of a tile that a warp multiplies in every step: in registers when these suffice for
/// them, else in shared memory, from where they come anew each time.
template <int D, int rows, class T, bool in_registers = true>
class WarpRows {
 public:
  __device__ explicit WarpRows(const T* tile)
      : rows_(tile + first_row_of_warp<rows>() * mma_pitch<D>) {
    if constexpr (in_registers)
#pragma unroll
      for (int d = 0; d < D / 16; ++d) load(registers_[d], d);
  }
  /// c [rows, 8 n] = these rows times y^T, over all channels, where y [8 n, D] are rows of a tile.
  template <int n>
  __device__ void multiply(float (&c)[n][rows / 4], const T* y) const {
#pragma unroll
    for (int j = 0; j < n; ++j)
      for (int e = 0; e < rows / 4; ++e) c[j][e] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      if constexpr (in_registers) {
        add_product_transposed<D>(c, registers_[d], y + 16 * d);
      } else {
        uint32_t a[rows / 16][4];
        load(a, d);
        add_product_transposed<D>(c, a, y + 16 * d);
      }
    }
  }

 private:
  __device__ void load(uint32_t (&a)[rows / 16][4], int d) const {
#pragma unroll
    for (int i = 0; i < rows / 16; ++i)
      load_square<D>(a[i], rows_ + 16 * i * mma_pitch<D> + 16 * d);
  }
  const T* rows_;
  uint32_t registers_[in_registers ? D / 16 : 1][rows / 16][4];
};

/// c [rows, D] += weights [rows, 8 n] t, where t [8 n, D] are rows of a tile. A sum's layout is
/// that of an a of mma, so the weights stay in their lanes and are only rounded.
template <int D, class T, int n, int numbers>
__device__ void add_weighted_rows(float (&c)[D / 8][numbers], const float (&weights)[n][numbers],
                                  const T* t) {
#pragma unroll
  for (int j = 0; j < n / 2; ++j) {
    uint32_t a[numbers / 4][4];
#pragma unroll
    for (int e = 0; e < numbers; e += 2) {
      a[e / 4][e / 2 % 2] = pair_of<T>(weights[2 * j][e], weights[2 * j][e + 1]);
      a[e / 4][e / 2 % 2 + 2] = pair_of<T>(weights[2 * j + 1][e], weights[2 * j + 1][e + 1]);
    }
    add_product<D>(c, a, t + 16 * j * mma_pitch<D>);
  }
}

// ---------------------------------------------------------------- places

/// Which rows and columns of a sum a lane holds.
template <int rows>
struct LanePlace {
  int row, column;  // row, row + 8, ...; in every 8 columns this one and the next
  __device__ LanePlace()
      : row(first_row_of_warp<rows>() + threadIdx.x % 32 / 4), column(threadIdx.x % 4 * 2) {}
  /// Of element e of a lane's c[j].
  __device__ int row_of(int e) const { return row + e / 2 * 8; }
  __device__ int column_of(int j, int e) const { return 8 * j + column + e % 2; }
};

// ---------------------------------------------------------------- scores

// A score stays in units of the product q k, so that the exponential's own multiplication scales
// it: exp2(exponent_scale score) = exp(scale q k + bias). The base 2 is the GPU's.
template <class T>
__device__ float exponent_scale(const Attention<T>& a) {
  return a.scale * log2_of_e;
}
template <class T>
__device__ float score_slope(const Attention<T>& a, int h) {
  return a.slope(h) / a.scale;
}

/// Products of queries from t0 on and keys from s0 on, in rows and columns or, `transposed`, in
/// columns and rows, become scores: less slope times distance, and -inf where a query does not see
/// a key. The entry has `keys` of them.
template <bool transposed, class T, int n, int numbers>
__device__ void to_scores(float (&product)[n][numbers], const Attention<T>& a, float slope,
                          int keys, int t0, int s0) {
  const LanePlace<4 * numbers> at;
  const auto query = [&](int j, int e) { return transposed ? at.column_of(j, e) : at.row_of(e); };
  const auto key = [&](int j, int e) { return transposed ? at.row_of(e) : at.column_of(j, e); };
  const int ahead = t0 + a.keys - a.queries - s0;
  if (slope != 0) {
    const int first = query(0, 0) - key(0, 0);
    const auto distance = static_cast<float>(ahead + first);
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < numbers; ++e)
        product[j][e] -= slope * (distance + (query(j, e) - key(j, e) - first));
  }
  const int left = keys - s0;
  const int diagonal = a.causal ? ahead : left;  // the last key that query t0 may see
  const auto seen = [&](int j, int e) {          // how many keys from s0 on
    const int causal = query(j, e) + diagonal + 1;
    return causal < left ? causal : left;
  };
  if (key(n - 1, numbers - 1) < seen(0, 0)) return;  // the last key by the first query
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < numbers; ++e)
      if (key(j, e) >= seen(j, e)) product[j][e] = -INFINITY;
}

// ---------------------------------------------------------------- which calls

/// Whether the rows lie as copies of 16 bytes need them; those that nobody asks for do.
inline bool lies_in_pieces(const Heads& heads) {
  return !heads || (packed({heads.tensor.raw()}) && heads.offset % 8 == 0 &&
                    heads.batch_stride % 8 == 0 && heads.row_stride % 8 == 0);
}
/// Of a call that reads and writes `all` these.
inline bool serves_tensor_cores(const kernels::AttentionShape& shape,
                                std::initializer_list<Heads> all) {
  const int64_t D = shape.head_size;
  // By a scale that is not positive, a score of -inf would not become a weight of 0.
  return is_16bit(all.begin()->tensor.dtype()) && (D == 32 || D == 64 || D == 128) &&
         shape.scale > 0 && std::all_of(all.begin(), all.end(), lies_in_pieces);
}

/// Calls f(T{}, integral_constant<int, D>{}).
template <class F>
void dispatch_tensor_cores(DType dtype, int64_t D, F&& f) {
  const auto with_size = [&](auto type) {
    if (D == 32) return f(type, std::integral_constant<int, 32>{});
    if (D == 64) return f(type, std::integral_constant<int, 64>{});
    f(type, std::integral_constant<int, 128>{});
  };
  if (dtype == DType::bf16) return with_size(bf16{});
  with_size(f16{});
}

/// As kernels::attention_forward and, with `statistics` [B, H, T] of QueryStatistics,
/// attention_backward, for what serves_tensor_cores.
void attention_forward_mma(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                           const kernels::AttentionShape& shape, const Tensor& out,
                           const Tensor& lse);
void attention_backward_mma(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                            const kernels::AttentionShape& shape, const Tensor& statistics,
                            const Tensor& dout, const Heads& dq, const Heads& dk, const Heads& dv);

}  // namespace tapeformer::cuda
