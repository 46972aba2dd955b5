// Attention, forward: the online softmax of flash attention (Dao 2023, algorithm 1). A tile of
// queries meets the keys tile by tile; sums so far are corrected when a larger score comes. In f32,
// and in 16 bits what the kernels of attention_mma.cu do not take.
#include "core/cuda/attention_mma.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <int max_D, class T>
__global__ void __launch_bounds__(attention_threads)
    attention_forward_kernel(Attention<T> a, T* out, Out lse) {
  DYN_SHARED(float, shared);
  const int D = a.head_size, H = a.heads, T_ = a.queries, pitch = max_D + 1;
  float *q = shared, *k = q + attention_tile * pitch, *v = k + attention_tile * pitch,
        *p = v + attention_tile * pitch;
  const auto [b, h, first] = HeadPart(T_, attention_tile, H);
  const int kv_head = h / a.group;
  const int row = threadIdx.x / attention_lanes, lane = threadIdx.x % attention_lanes;
  const int t = first + row, visible = a.visible(b, t);
  const int end = a.visible_to_rows(b, first, attention_tile);
  const float slope = a.slope(h);
  float largest = -INFINITY, sum = 0;
  float o[max_D / attention_lanes] = {};
  load_tile<max_D>(q, a.q, b, h, D, first, T_);
  for (int s0 = 0; s0 < end; s0 += attention_tile) {
    __syncthreads();  // the last tile has been read
    load_tile<max_D>(k, a.k, b, kv_head, D, s0, a.keys);
    load_tile<max_D>(v, a.v, b, kv_head, D, s0, a.keys);
    __syncthreads();
    float score[attention_scores];
    float tile_largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < attention_scores; ++j) {
      const int key = lane + j * attention_lanes;
      const float product = dot(q + row * pitch, k + key * pitch, D);
      score[j] = s0 + key < visible ? a.score(product, slope, t, s0 + key) : -INFINITY;
      tile_largest = fmaxf(tile_largest, score[j]);
    }
    const float larger = fmaxf(largest, lanes_max(tile_largest));
    const float correction = largest == -INFINITY ? 0 : expf(largest - larger);
    sum *= correction;
#pragma unroll
    for (int j = 0; j < attention_scores; ++j) {
      const float weight = score[j] == -INFINITY ? 0 : expf(score[j] - larger);
      p[row * score_pitch + lane + j * attention_lanes] = weight;
      sum += weight;
    }
    __syncwarp();  // a row's weights come from its own four lanes
#pragma unroll
    for (int i = 0; i < max_D / attention_lanes; ++i) o[i] *= correction;
    add_rows<max_D>(o, p + row * score_pitch, v);
    largest = larger;
  }
  sum = lanes_sum(sum);
  if (t >= T_) return;
  const float inverse = visible > 0 ? 1 / sum : 0;
  T* to = out + ((int64_t{b} * T_ + t) * H + h) * D;
#pragma unroll
  for (int i = 0; i < max_D / attention_lanes; ++i)
    if (const int d = lane + i * attention_lanes; d < D) to[d] = from_float<T>(o[i] * inverse);
  if (lse.data && lane == 0)
    lse.write(a.index(b, h, t), visible > 0 ? largest + logf(sum) : -INFINITY);
}

}  // namespace

void attention_forward(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                       const AttentionShape& shape, const Tensor& out, const Tensor& lse) {
  check_rows(shape);
  if (serves_tensor_cores(shape, {q, k, v, {out}}))
    return attention_forward_mma(q, k, v, lengths, shape, out, lse);
  const int64_t tiles = blocks_for(shape.queries, attention_tile);
  const int64_t blocks = shape.batch * shape.heads * tiles;
  if (blocks == 0) return;
  dispatch("attention", out.dtype(), [&](auto type) {
    using T = decltype(type);
    dispatch_head_size(shape.head_size, [&](auto size) {
      launch<attention_forward_kernel<decltype(size)::value, T>>(
          static_cast<unsigned>(blocks), attention_threads,
          attention_shared(decltype(size)::value, 3, 1), stream(),
          Attention<T>(q, k, v, lengths, shape), tapeformer::cuda::out<T>(out),
          lse.defined() ? Out(lse) : Out());
    });
  });
}

}  // namespace tapeformer::kernels::cuda
