// What the attention kernels share: where heads lie, which keys a query sees, and tiles of rows in
// shared memory.
//
// A block of 128 threads works on a tile of 32 rows, four neighbouring lanes on each row: a row's
// sums need no more than two shuffles, and what the four exchange stays in their warp.
#pragma once

#include "core/cuda/pack.cuh"

namespace tapeformer::cuda {

inline constexpr int attention_tile = 32, attention_lanes = 4;
inline constexpr int attention_threads = attention_tile * attention_lanes;
inline constexpr int attention_scores = attention_tile / attention_lanes;  // of a row, in one lane
inline constexpr int score_pitch = attention_tile + 1;

/// Rows of heads inside a larger tensor, see Heads.
template <class T>
struct HeadRows {
  const T* data;
  int64_t batch_stride, row_stride;

  HeadRows(const Heads& heads)
      : data(in<T>(heads.tensor) + heads.offset),
        batch_stride(heads.batch_stride),
        row_stride(heads.row_stride) {}
  HeadRows(const Tensor& rows, int64_t T_, int64_t channels)
      : data(in<T>(rows)), batch_stride(T_ * channels), row_stride(channels) {}
  __device__ const T* row(int64_t b, int64_t row, int64_t h, int64_t D) const {
    return data + b * batch_stride + row * row_stride + h * D;
  }
};

/// The same for writing; `data` is null where nothing is asked for.
template <class T>
struct HeadOut {
  T* data;
  int64_t batch_stride, row_stride;
  bool accumulate;

  HeadOut(const Heads& heads)
      : data(heads ? out<T>(heads.tensor) + heads.offset : nullptr),
        batch_stride(heads.batch_stride),
        row_stride(heads.row_stride),
        accumulate(heads.accumulate) {}
  __device__ void write(int64_t b, int64_t row, int64_t at, float value) const {
    T* to = data + b * batch_stride + row * row_stride + at;
    *to = from_float<T>(accumulate ? to_float(*to) + value : value);
  }
  /// Two neighbours at once, the first of them at an even place.
  __device__ void write_pair(int64_t b, int64_t row, int64_t at, const float (&pair)[2]) const {
    T* to = data + b * batch_stride + row * row_stride + at;
    float sum[2] = {};
    if (accumulate) read(to, sum);
    cuda::write(to, {sum[0] + pair[0], sum[1] + pair[1]});
  }
};

/// Throws where a sequence has more rows than the kernels count.
inline void check_rows(const kernels::AttentionShape& shape) {
  check(std::max(shape.queries, shape.keys) <= 1 << 30,
        "attention: on a GPU a sequence has at most 2^30 rows; use the CPU");
}

/// One call of attention. Rows are counted in 32 bits, for which the kernels' arithmetic needs half
/// the registers; see check_rows.
template <class T>
struct Attention {
  HeadRows<T> q, k, v;
  const int32_t* lengths;
  int queries, keys, heads, kv_heads, head_size;
  int group;  // of query heads that read the same keys and values
  bool causal, alibi;
  float scale;

  Attention(const Heads& q, const Heads& k, const Heads& v, const Tensor& lengths,
            const kernels::AttentionShape& shape)
      : q(q),
        k(k),
        v(v),
        lengths(in<int32_t>(lengths)),
        queries(static_cast<int>(shape.queries)),
        keys(static_cast<int>(shape.keys)),
        heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        head_size(static_cast<int>(shape.head_size)),
        group(heads / kv_heads),
        causal(shape.causal),
        alibi(shape.alibi),
        scale(static_cast<float>(shape.scale)) {}

  /// Where what there is for each query of each head, [B, H, T], lies.
  __device__ size_t index(int b, int h, int t) const {
    return (static_cast<size_t>(b) * heads + h) * queries + t;
  }
  /// How many keys entry b has.
  __device__ int keys_of(int b) const {
    if (!lengths || lengths[b] >= keys) return keys;
    return lengths[b] < 0 ? 0 : lengths[b];
  }
  /// How many keys query t of entry b sees: they are the first ones, and a later query sees no
  /// fewer.
  __device__ int visible(int b, int t) const {
    const int all = keys_of(b), before = t + 1 + keys - queries;
    if (!causal || before > all) return all;
    return before < 0 ? 0 : before;
  }
  /// How many keys the last of `count` queries from `first` on sees, of those that there are.
  __device__ int visible_to_rows(int b, int first, int count) const {
    return visible(b, first + count < queries ? first + count - 1 : queries - 1);
  }
  /// The first query that sees key s, down to a multiple of `count`; `queries` where none does.
  __device__ int first_query(int b, int s, int count) const {
    if (visible(b, queries - 1) <= s) return queries;
    const int first = causal ? s - (keys - queries) : 0;
    return first < 0 ? 0 : first / count * count;
  }
  /// scale q k + bias of query t and key s, from the product q k. ALiBi's slopes are those of
  /// kernels::alibi_slope.
  __device__ float score(float product, float slope, int t, int s) const {
    return scale * product - slope * static_cast<float>(t + keys - queries - s);
  }
  __device__ float slope(int h) const {
    if (!alibi) return 0;
    int power = 1;
    while (power * 2 <= heads) power *= 2;
    const float first = static_cast<float>(h + 1), next = static_cast<float>(2 * (h - power) + 1);
    return h < power ? exp2f(-8 * first / power) : exp2f(-8 * next / (2 * power));
  }
};

/// What backward knows of a query before it meets the keys: lse with the base 2, and 0 where it
/// sees none, so that exp2(-inf - lse) is 0; and delta = sum_D(dout out).
struct alignas(8) QueryStatistics {
  float lse, delta;
};

/// What a block works on: some of the rows of head h of entry b, `first` the first of them.
struct HeadPart {
  int b, h, first;
  /// `count` of `rows` rows; `backwards`, the blocks begin with the last ones.
  __device__ HeadPart(int rows, int count, int heads, bool backwards = false) {
    const int parts = (rows + count - 1) / count, block = static_cast<int>(blockIdx.x);
    const int head = block / parts, part = block % parts;
    b = head / heads;
    h = head % heads;
    first = (backwards ? parts - 1 - part : part) * count;
  }
};

/// tile [32, max_D + 1] = rows [first, first + 32) of a head; what lies outside the head is zero.
template <int max_D, class T>
__device__ void load_tile(float* tile, const HeadRows<T>& heads, int b, int h, int D, int first,
                          int rows) {
#pragma unroll 4  // all at once would take too many registers
  for (int i = threadIdx.x; i < attention_tile * max_D; i += attention_threads) {
    const int row = i / max_D, d = i % max_D;
    tile[row * (max_D + 1) + d] =
        first + row < rows && d < D ? to_float(heads.row(b, first + row, h, D)[d]) : 0;
  }
}

__device__ inline float dot(const float* a, const float* b, int D) {
  float sum = 0;
#pragma unroll 4
  for (int d = 0; d < D; ++d) sum += a[d] * b[d];
  return sum;
}

/// sum += weights [32] tile [32, max_D + 1], where each lane keeps the channels lane, lane + 4, ...
template <int max_D>
__device__ void add_rows(float (&sum)[max_D / attention_lanes], const float* weights,
                         const float* tile) {
  tile += threadIdx.x % attention_lanes;
#pragma unroll 1
  for (int row = 0; row < attention_tile; ++row, tile += max_D + 1) {
    const float weight = weights[row];
#pragma unroll
    for (int i = 0; i < max_D / attention_lanes; ++i) sum[i] += weight * tile[i * attention_lanes];
  }
}

/// The sum over the four lanes of a row.
__device__ inline float lanes_sum(float x) {
  x += __shfl_xor_sync(whole_warp, x, 1);
  return x + __shfl_xor_sync(whole_warp, x, 2);
}
__device__ inline float lanes_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(whole_warp, x, 1));
  return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));
}

/// Calls f(integral_constant<int>) with the largest head size that a kernel has registers for.
template <class F>
void dispatch_head_size(int64_t D, F&& f) {
  if (D <= 64) return f(std::integral_constant<int, 64>{});
  if (D <= 128) return f(std::integral_constant<int, 128>{});
  check(D <= 256, "attention: on a GPU a head has at most 256 channels, got ", D,
        "; take more heads, or the CPU");
  f(std::integral_constant<int, 256>{});
}

/// Dynamic shared memory for `tiles` tiles of rows and `scores` of scores.
constexpr size_t attention_shared(int max_D, int tiles, int scores) {
  const int floats = tiles * attention_tile * (max_D + 1) + scores * attention_tile * score_pitch;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace tapeformer::cuda
