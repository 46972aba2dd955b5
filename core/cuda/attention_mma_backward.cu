// Attention, backward, on tensor cores (Dao 2023, algorithm 2), in two kernels as in
// attention_backward.cu: every sum has one owner, and nothing is added atomically.
#include "core/cuda/attention_mma.cuh"

namespace tapeformer::cuda {
namespace {

constexpr int columns = 32;  // keys or queries that come along in a step

// What comes along is loaded for all of a warp's queries or keys at once, so there are as many as
// registers allow.
template <int D>
constexpr int warp_queries = D == 128 ? 16 : 32;
constexpr int warp_keys = 16;
// How many of `columns` are in p and ds at a time, so that two blocks share a multiprocessor's
// registers in dq and three in dk and dv, two of heads of 128.
template <int D>
constexpr int width = D == 64 ? 16 : columns;

template <class T>
struct MmaBackward {
  Attention<T> attention;
  HeadRows<T> dout;
  const QueryStatistics* statistics;  // [B, H, T]
};

// Dynamic shared memory: two tiles that stay, two stages of two tiles that come along.
template <int D, int rows>
constexpr int own_elements = mma_warps* rows* mma_pitch<D>;
template <int D>
constexpr int stage_elements = 2 * columns* mma_pitch<D>;
template <int D, int rows, class T>
constexpr size_t tile_bytes = (2 * own_elements<D, rows> + 2 * stage_elements<D>)*sizeof(T);

template <int D, class T, int numbers>
__device__ void write_sum(const HeadOut<T>& to, const float (&sum)[D / 8][numbers], float factor,
                          int b, int first, int rows, int h) {
  const LanePlace<4 * numbers> at;
#pragma unroll
  for (int e = 0; e < numbers; e += 2)
    if (const int row = first + at.row_of(e); row < rows)
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
        to.write_pair(b, row, h * D + at.column_of(j, e),
                      {factor * sum[j][e], factor * sum[j][e + 1]});
}

// dq = scale ds k, for a tile of queries.
template <int D, class T>
__global__ void __launch_bounds__(mma_threads, 2)
    attention_backward_q_mma_kernel(MmaBackward<T> a, HeadOut<T> dq) {
  DYN_SHARED(T, q_tile);
  constexpr int rows = warp_queries<D>, all_rows = mma_warps * rows;
  T *dout_tile = q_tile + own_elements<D, rows>, *stages = dout_tile + own_elements<D, rows>;
  const Attention<T>& call = a.attention;
  const int T_ = call.queries, S = call.keys;
  const HeadPart part(T_, all_rows, call.heads, true);  // the last queries see the most keys
  const int b = part.b, h = part.h, first = part.first, kv_head = h / call.group;
  const int keys = call.keys_of(b), end = call.visible_to_rows(b, first, all_rows);
  const int warp_end = call.visible_to_rows(b, first + first_row_of_warp<rows>(), rows);
  const float scale = exponent_scale(call), slope = score_slope(call, h);
  const LanePlace<rows> at;
  QueryStatistics of_row[rows / 8];
#pragma unroll
  for (int r = 0; r < rows / 8; ++r) {
    const int t = first + at.row + 8 * r;
    of_row[r] = a.statistics[call.index(b, h, t < T_ ? t : first)];
  }

  start_tile<D, all_rows>(q_tile, call.q, b, h, first, T_);
  start_tile<D, all_rows>(dout_tile, a.dout, b, h, first, T_);
  const auto start_keys = [&](int s0) {
    T* k = stages + s0 / columns % 2 * stage_elements<D>;
    start_tile<D, columns>(k, call.k, b, kv_head, s0, S);
    start_tile<D, columns>(k + stage_elements<D> / 2, call.v, b, kv_head, s0, S);
  };
  if (end > 0) start_keys(0);
  end_group_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  const WarpRows<D, rows, T> q(q_tile), dout(dout_tile);
  float sum[D / 8][rows / 4] = {};
  for (int s0 = 0; s0 < end; s0 += columns) {
    wait_for_copies<0>();
    __syncthreads();  // this stage is here, and the other one has been read
    if (s0 + columns < end) start_keys(s0 + columns);
    end_group_of_copies();
    if (s0 >= warp_end) continue;  // this warp's queries see none of these keys
#pragma unroll
    for (int c = 0; c < columns; c += width<D>) {
      const T* k = stages + s0 / columns % 2 * stage_elements<D> + c * mma_pitch<D>;
      float p[width<D> / 8][rows / 4], ds[width<D> / 8][rows / 4];
      q.multiply(p, k);
      dout.multiply(ds, k + stage_elements<D> / 2);
      to_scores<false>(p, call, slope, keys, first, s0 + c);
#pragma unroll
      for (int j = 0; j < width<D> / 8; ++j)
#pragma unroll
        for (int e = 0; e < rows / 4; ++e)
          ds[j][e] =
              fast_exp2(scale * p[j][e] - of_row[e / 2].lse) * (ds[j][e] - of_row[e / 2].delta);
      add_weighted_rows<D>(sum, ds, k);
    }
  }
  write_sum<D>(dq, sum, call.scale, b, first, T_, h);
}

// dk = scale ds^T q and dv = p^T dout, for a tile of keys, over all query heads that read it. p and
// ds are computed as their transposes, so that their rows are keys.
template <int D, class T>
__global__ void __launch_bounds__(mma_threads, D == 128 ? 2 : 3)
    attention_backward_kv_mma_kernel(MmaBackward<T> a, HeadOut<T> dk, HeadOut<T> dv) {
  DYN_SHARED(T, k_tile);
  constexpr int rows = warp_keys, all_rows = mma_warps * rows;
  SHARED(float, lse, [2][columns]);
  SHARED(float, delta, [2][columns]);
  T *v_tile = k_tile + own_elements<D, rows>, *stages = v_tile + own_elements<D, rows>;
  const Attention<T>& call = a.attention;
  const int T_ = call.queries, S = call.keys;
  const HeadPart part(S, all_rows, call.kv_heads);
  const int b = part.b, kv_head = part.h, first = part.first;
  const int keys = call.keys_of(b), begin = call.first_query(b, first, columns);
  const int warp_begin = call.first_query(b, first + first_row_of_warp<rows>(), columns);
  const float scale = exponent_scale(call);

  start_tile<D, all_rows>(k_tile, call.k, b, kv_head, first, S);
  start_tile<D, all_rows>(v_tile, call.v, b, kv_head, first, S);
  const auto start_queries = [&](int stage, int h, int t0) {
    T* q = stages + stage * stage_elements<D>;
    start_tile<D, columns>(q, call.q, b, h, t0, T_);
    start_tile<D, columns>(q + stage_elements<D> / 2, a.dout, b, h, t0, T_);
    if (const int column = threadIdx.x; column < columns) {
      const bool inside = t0 + column < T_;
      const QueryStatistics* from = a.statistics + call.index(b, h, t0 + column);
      start_copy<4>(&lse[stage][column], &from->lse, inside);
      start_copy<4>(&delta[stage][column], &from->delta, inside);
    }
  };
  if (begin < T_) start_queries(0, kv_head * call.group, begin);
  end_group_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  const WarpRows<D, rows, T, (D <= 64)> k(k_tile), v(v_tile);
  float sum_k[D / 8][4] = {}, sum_v[D / 8][4] = {};
  const LanePlace<rows> at;
  int stage = 0;
  for (int h = kv_head * call.group; h < (kv_head + 1) * call.group; ++h) {
    const float slope = score_slope(call, h);
    for (int t0 = begin; t0 < T_; t0 += columns, stage ^= 1) {
      const bool more = t0 + columns < T_;  // else the next head begins
      wait_for_copies<0>();
      __syncthreads();  // this stage is here, and the other one has been read
      if (more || h + 1 < (kv_head + 1) * call.group)
        start_queries(stage ^ 1, more ? h : h + 1, more ? t0 + columns : begin);
      end_group_of_copies();
      if (t0 < warp_begin) continue;  // none of these queries sees this warp's keys
#pragma unroll
      for (int c = 0; c < columns; c += width<D>) {
        const T* q = stages + stage * stage_elements<D> + c * mma_pitch<D>;
        const T* dout = q + stage_elements<D> / 2;
        float p[width<D> / 8][4], ds[width<D> / 8][4];
        k.multiply(p, q);
        // Queries past the end add nothing: their rows and statistics are zeros.
        to_scores<true>(p, call, slope, keys, t0 + c, first);
#pragma unroll
        for (int j = 0; j < width<D> / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            p[j][e] = fast_exp2(scale * p[j][e] - lse[stage][c + at.column_of(j, e)]);
        add_weighted_rows<D>(sum_v, p, dout);
        v.multiply(ds, dout);
#pragma unroll
        for (int j = 0; j < width<D> / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            ds[j][e] = p[j][e] * (ds[j][e] - delta[stage][c + at.column_of(j, e)]);
        add_weighted_rows<D>(sum_k, ds, q);
      }
    }
  }
  if (dk.data) write_sum<D>(dk, sum_k, call.scale, b, first, S, kv_head);
  if (dv.data) write_sum<D>(dv, sum_v, 1, b, first, S, kv_head);
}

}  // namespace

void attention_backward_mma(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                            const kernels::AttentionShape& shape, const Tensor& statistics,
                            const Tensor& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  const int64_t B = shape.batch, T_ = shape.queries, S = shape.keys;
  dispatch_tensor_cores(dout.dtype(), shape.head_size, [&](auto type, auto size) {
    using T = decltype(type);
    constexpr int D = decltype(size)::value;
    const MmaBackward<T> a{Attention<T>(q, k, v, lengths, shape),
                           HeadRows<T>(dout, T_, shape.heads * D),
                           static_cast<const QueryStatistics*>(statistics.raw())};
    if (dq && B * T_ > 0)
      launch<attention_backward_q_mma_kernel<D, T>>(
          static_cast<unsigned>(B * shape.heads * blocks_for(T_, mma_warps * warp_queries<D>)),
          mma_threads, tile_bytes<D, warp_queries<D>, T>, stream(), a, HeadOut<T>(dq));
    if ((dk || dv) && B * S > 0)
      launch<attention_backward_kv_mma_kernel<D, T>>(
          static_cast<unsigned>(B * shape.kv_heads * blocks_for(S, mma_warps * warp_keys)),
          mma_threads, tile_bytes<D, warp_keys, T>, stream(), a, HeadOut<T>(dk), HeadOut<T>(dv));
  });
}

}  // namespace tapeformer::cuda
