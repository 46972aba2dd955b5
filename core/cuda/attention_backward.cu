// Attention, backward (Dao 2023, algorithm 2), in two kernels, so that every sum has one owner and
// nothing is added atomically: one walks the keys for a tile of queries and sums dq, the other
// walks the queries for a tile of keys and sums dk and dv.
#include "core/cuda/attention_mma.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct Backward {
  Attention<T> attention;
  HeadRows<T> out, dout;
  In lse;                       // [B, H, T]
  QueryStatistics* statistics;  // [B, H, T]

  // exp(score - lse) of query t and key s.
  __device__ float weight(float product, float slope, int t, int s, float lse_of_t) const {
    return expf(attention.score(product, slope, t, s) - lse_of_t);
  }
};

constexpr int delta_lanes = 8, delta_rows = attention_threads / delta_lanes;  // of a block

// delta = sum_D(dout out), a few lanes for each query of each head, n channels at a time.
template <class T, int n>
__global__ void __launch_bounds__(attention_threads) attention_delta_kernel(Backward<T> a) {
  const Attention<T>& at = a.attention;
  const auto [b, h, first] = HeadPart(at.queries, delta_rows, at.heads);
  const int row = threadIdx.x / delta_lanes, lane = threadIdx.x % delta_lanes, D = at.head_size;
  const bool inside = first + row < at.queries;
  const int t = inside ? first + row : first;  // all lanes take part in the sum
  const T *out = a.out.row(b, t, h, D), *dout = a.dout.row(b, t, h, D);
  float sum = 0;
  for (int d = n * lane; d < D; d += n * delta_lanes) {
    float x[n], y[n];
    read(out + d, x);
    read(dout + d, y);
#pragma unroll
    for (int i = 0; i < n; ++i) sum += x[i] * y[i];
  }
#pragma unroll
  for (int lanes = delta_lanes / 2; lanes > 0; lanes /= 2)
    sum += __shfl_xor_sync(whole_warp, sum, lanes);
  if (!inside || lane > 0) return;
  const size_t i = at.index(b, h, t);
  const float lse = a.lse.read(i);
  a.statistics[i] = {lse == -INFINITY ? 0 : lse * log2_of_e, sum};
}

// dq = scale ds k, for a tile of queries. Two blocks at a time are enough, here and below, so that
// the compiler spills no register to make room for more.
template <int max_D, class T>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_backward_q_kernel(Backward<T> a, HeadOut<T> dq) {
  DYN_SHARED(float, shared);
  const Attention<T>& at = a.attention;
  const int D = at.head_size, T_ = at.queries, pitch = max_D + 1;
  float *q = shared, *k = q + attention_tile * pitch, *v = k + attention_tile * pitch,
        *dout = v + attention_tile * pitch, *ds = dout + attention_tile * pitch;
  const auto [b, h, first] = HeadPart(T_, attention_tile, at.heads);
  const int kv_head = h / at.group;
  const int row = threadIdx.x / attention_lanes, lane = threadIdx.x % attention_lanes;
  const int t = first + row, visible = t < T_ ? at.visible(b, t) : 0;
  const int end = at.visible_to_rows(b, first, attention_tile);
  const size_t at_row = at.index(b, h, t < T_ ? t : first);
  const float slope = at.slope(h), lse = a.lse.read(at_row), delta = a.statistics[at_row].delta;
  float sum[max_D / attention_lanes] = {};
  load_tile<max_D>(q, at.q, b, h, D, first, T_);
  load_tile<max_D>(dout, a.dout, b, h, D, first, T_);
  for (int s0 = 0; s0 < end; s0 += attention_tile) {
    __syncthreads();  // the last tile has been read
    load_tile<max_D>(k, at.k, b, kv_head, D, s0, at.keys);
    load_tile<max_D>(v, at.v, b, kv_head, D, s0, at.keys);
    __syncthreads();
    for (int key = lane; key < attention_tile; key += attention_lanes) {
      float slope_of_score = 0;
      if (s0 + key < visible) {
        const float product = dot(q + row * pitch, k + key * pitch, D);
        const float p = a.weight(product, slope, t, s0 + key, lse);
        slope_of_score = p * (dot(dout + row * pitch, v + key * pitch, D) - delta);
      }
      ds[row * score_pitch + key] = slope_of_score;
    }
    __syncwarp();  // a row's slopes come from its own four lanes
    add_rows<max_D>(sum, ds + row * score_pitch, k);
  }
  if (t >= T_) return;
#pragma unroll
  for (int i = 0; i < max_D / attention_lanes; ++i)
    if (const int d = lane + i * attention_lanes; d < D)
      dq.write(b, t, h * D + d, at.scale * sum[i]);
}

// dk = scale ds^T q and dv = p^T dout, for a tile of keys, over all query heads that read it.
template <int max_D, class T>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_backward_kv_kernel(Backward<T> a, HeadOut<T> dk, HeadOut<T> dv) {
  DYN_SHARED(float, shared);
  const Attention<T>& at = a.attention;
  const int D = at.head_size, T_ = at.queries, S = at.keys, pitch = max_D + 1;
  float *k = shared, *v = k + attention_tile * pitch, *q = v + attention_tile * pitch,
        *dout = q + attention_tile * pitch, *p = dout + attention_tile * pitch,
        *ds = p + attention_tile * score_pitch;
  const auto [b, kv_head, first] = HeadPart(S, attention_tile, at.kv_heads);
  const int group = at.group, begin = at.first_query(b, first, attention_tile);
  const int row = threadIdx.x / attention_lanes, lane = threadIdx.x % attention_lanes;
  const int s = first + row;
  float sum_k[max_D / attention_lanes] = {}, sum_v[max_D / attention_lanes] = {};
  load_tile<max_D>(k, at.k, b, kv_head, D, first, S);
  load_tile<max_D>(v, at.v, b, kv_head, D, first, S);
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const float slope = at.slope(h);
    for (int t0 = begin; t0 < T_; t0 += attention_tile) {
      __syncthreads();  // the last tile has been read
      load_tile<max_D>(q, at.q, b, h, D, t0, T_);
      load_tile<max_D>(dout, a.dout, b, h, D, t0, T_);
      __syncthreads();
      for (int query = lane; query < attention_tile; query += attention_lanes) {
        const int t = t0 + query;
        float weight = 0, slope_of_score = 0;
        if (t < T_ && s < at.visible(b, t)) {
          const size_t at_row = at.index(b, h, t);
          const float product = dot(q + query * pitch, k + row * pitch, D);
          weight = a.weight(product, slope, t, s, a.lse.read(at_row));
          slope_of_score =
              weight * (dot(dout + query * pitch, v + row * pitch, D) - a.statistics[at_row].delta);
        }
        p[row * score_pitch + query] = weight;
        ds[row * score_pitch + query] = slope_of_score;
      }
      __syncwarp();  // a row's weights come from its own four lanes
      add_rows<max_D>(sum_v, p + row * score_pitch, dout);
      add_rows<max_D>(sum_k, ds + row * score_pitch, q);
    }
  }
  if (s >= S) return;
#pragma unroll
  for (int i = 0; i < max_D / attention_lanes; ++i)
    if (const int d = lane + i * attention_lanes; d < D) {
      if (dk.data) dk.write(b, s, kv_head * D + d, at.scale * sum_k[i]);
      if (dv.data) dv.write(b, s, kv_head * D + d, sum_v[i]);
    }
}

}  // namespace

void attention_backward(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
                        const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  const int64_t B = shape.batch, T_ = shape.queries, S = shape.keys, D = shape.head_size;
  const int64_t heads = B * shape.heads;
  const Tensor statistics = Tensor::empty({heads * T_, 2}, DType::f32, Device::cuda);
  dispatch("attention", out.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t channels = shape.heads * D;
    const Backward<T> a{Attention<T>(q, k, v, lengths, shape), HeadRows<T>(out, T_, channels),
                        HeadRows<T>(dout, T_, channels), lse,
                        static_cast<QueryStatistics*>(statistics.raw())};
    const auto start_delta = [&](auto n) {
      launch<attention_delta_kernel<T, decltype(n)::value>>(
          static_cast<unsigned>(heads * blocks_for(T_, delta_rows)), attention_threads, 0, stream(),
          a);
    };
    constexpr int pack = pack_of<T>;
    if (heads * T_ > 0) {
      if (D % pack == 0 && packed({out.raw(), dout.raw()}))
        start_delta(std::integral_constant<int, pack>{});
      else
        start_delta(std::integral_constant<int, 1>{});
    }
    if (serves_tensor_cores(shape, {q, k, v, {dout}, dq, dk, dv}))
      return attention_backward_mma(q, k, v, lengths, shape, statistics, dout, dq, dk, dv);
    dispatch_head_size(D, [&](auto size) {
      constexpr int max_D = decltype(size)::value;
      if (dq && heads * T_ > 0)
        launch<attention_backward_q_kernel<max_D, T>>(
            static_cast<unsigned>(heads * blocks_for(T_, attention_tile)), attention_threads,
            attention_shared(max_D, 4, 1), stream(), a, HeadOut<T>(dq));
      if ((dk || dv) && B * S > 0)
        launch<attention_backward_kv_kernel<max_D, T>>(
            static_cast<unsigned>(B * shape.kv_heads * blocks_for(S, attention_tile)),
            attention_threads, attention_shared(max_D, 4, 2), stream(), a, HeadOut<T>(dk),
            HeadOut<T>(dv));
    });
  });
}

}  // namespace tapeformer::kernels::cuda
