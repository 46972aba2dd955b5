// Attention, forward, on tensor cores: flash attention 2 (Dao 2023, algorithm 1). While one tile of
// keys and values is multiplied, the next one is on its way.
#include "core/cuda/attention_mma.cuh"

namespace tapeformer::cuda {
namespace {

constexpr int columns = 64;  // keys in a tile

// Keys and values are loaded for all of a warp's queries at once, so there are as many as registers
// allow that two blocks share.
template <int D>
constexpr int warp_queries = D == 128 ? 16 : 32;

// The rows of a warp's queries that a lane holds, on their way through the keys.
template <int D>
struct OnlineSoftmax {
  static constexpr int rows = warp_queries<D> / 8;
  float largest[rows], sum[rows] = {};  // a lane's part of the row's sum
  float o[D / 8][2 * rows] = {};

  __device__ OnlineSoftmax() {
#pragma unroll
    for (float& x : largest) x = -INFINITY;
  }
  // Scores become weights exp2(scale (score - largest)); what was summed before is corrected.
  template <int n>
  __device__ void to_weights(float (&score)[n][2 * rows], float scale) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float larger = largest[r];
#pragma unroll
      for (int j = 0; j < n; ++j)
        larger = fmaxf(larger, fmaxf(score[j][2 * r], score[j][2 * r + 1]));
      larger = lanes_max(larger);
      const float zero = larger == -INFINITY ? 0 : scale * larger;  // nothing is visible yet
      const float correction = fast_exp2(scale * largest[r] - zero);
      largest[r] = larger;
      sum[r] *= correction;
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          score[j][e] = fast_exp2(scale * score[j][e] - zero);
          sum[r] += score[j][e];
        }
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        o[j][2 * r] *= correction;
        o[j][2 * r + 1] *= correction;
      }
    }
  }
};

// Two tiles of keys and two of values: one pair is read, the other one filled. Before the first
// keys come, the queries pass through the second pair, which has room for them.
template <int D>
constexpr int tile_elements = columns* mma_pitch<D>;

template <int D, class T>
__global__ void __launch_bounds__(mma_threads, 2)
    attention_forward_mma_kernel(Attention<T> a, T* out, float* lse) {
  DYN_SHARED(T, tiles);
  constexpr int rows = warp_queries<D>, all_rows = mma_warps * rows;
  const int T_ = a.queries, H = a.heads;
  const HeadPart part(T_, all_rows, H, true);  // the last queries see the most keys
  const int b = part.b, h = part.h, first = part.first, kv_head = h / a.group;
  const int keys = a.keys_of(b), end = a.visible_to_rows(b, first, all_rows);
  const int warp_end = a.visible_to_rows(b, first + first_row_of_warp<rows>(), rows);
  const float scale = exponent_scale(a), slope = score_slope(a, h);

  start_tile<D, all_rows>(tiles + 2 * tile_elements<D>, a.q, b, h, first, T_);
  const auto start_keys = [&](int s0) {
    T* tile = tiles + s0 / columns % 2 * 2 * tile_elements<D>;
    start_tile<D, columns>(tile, a.k, b, kv_head, s0, a.keys);
    start_tile<D, columns>(tile + tile_elements<D>, a.v, b, kv_head, s0, a.keys);
  };
  if (end > 0) start_keys(0);
  end_group_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  const WarpRows<D, rows, T> q(tiles + 2 * tile_elements<D>);
  OnlineSoftmax<D> softmax;
  for (int s0 = 0; s0 < end; s0 += columns) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is here, and the other one has been read
    if (s0 + columns < end) start_keys(s0 + columns);
    end_group_of_copies();
    if (s0 >= warp_end) continue;  // this warp's queries see none of these keys
    const T* k = tiles + s0 / columns % 2 * 2 * tile_elements<D>;
    float score[columns / 8][rows / 4];
    q.multiply(score, k);
    to_scores<false>(score, a, slope, keys, first, s0);
    softmax.to_weights(score, scale);
    add_weighted_rows<D>(softmax.o, score, k + tile_elements<D>);
  }

  const LanePlace<rows> at;
#pragma unroll
  for (int r = 0; r < rows / 8; ++r) {
    const float sum = lanes_sum(softmax.sum[r]);
    const int t = first + at.row + 8 * r;
    if (t >= T_) continue;
    const bool sees_any = a.visible(b, t) > 0;
    const float inverse = sees_any ? 1 / sum : 0;
    const auto& o = softmax.o;
    T* to = out + ((int64_t{b} * T_ + t) * H + h) * D;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      write(to + at.column_of(j, 0), {o[j][2 * r] * inverse, o[j][2 * r + 1] * inverse});
    if (lse && at.column == 0)
      lse[a.index(b, h, t)] =
          sees_any ? (scale * softmax.largest[r] + log2f(sum)) / log2_of_e : -INFINITY;
  }
}

}  // namespace

void attention_forward_mma(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                           const kernels::AttentionShape& shape, const Tensor& out,
                           const Tensor& lse) {
  if (shape.batch * shape.queries == 0) return;
  dispatch_tensor_cores(out.dtype(), shape.head_size, [&](auto type, auto size) {
    using T = decltype(type);
    constexpr int D = decltype(size)::value;
    const int64_t blocks =
        shape.batch * shape.heads * blocks_for(shape.queries, mma_warps * warp_queries<D>);
    launch<attention_forward_mma_kernel<D, T>>(
        static_cast<unsigned>(blocks), mma_threads, 4 * tile_elements<D> * sizeof(T), stream(),
        Attention<T>(q, k, v, lengths, shape), cuda::out<T>(out), cuda::out<float>(lse));
  });
}

}  // namespace tapeformer::cuda
