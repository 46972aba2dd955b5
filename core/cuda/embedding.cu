// Rows of a table by index, and the sum of gradients back into the table.
#include "core/cuda/pack.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
struct EmbeddingForward : EachInRows {
  const T* table;
  const int32_t* indices;
  size_t channels;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const T* from = table + static_cast<size_t>(indices[row]) * channels;
    store(y + row * channels + column, load<n>(from + column));
  }
};

constexpr unsigned sort_threads = 512, sort_chunk = 2 * sort_threads;

// The keys (index, n) of one chunk of 1024 positions n, sorted (Batcher 1968, the bitonic network).
// Positions past the end come last, and are not kept.
__global__ void __launch_bounds__(sort_threads)
    sort_positions_kernel(const int32_t* indices, size_t n, uint64_t* sorted) {
  SHARED(uint64_t, keys, [sort_chunk]);
  const size_t begin = size_t{blockIdx.x} * sort_chunk;
  for (unsigned k = threadIdx.x; k < sort_chunk; k += sort_threads) {
    const size_t at = begin + k;
    keys[k] = at < n ? static_cast<uint64_t>(indices[at]) << 32 | at : ~uint64_t{0};
  }
  for (unsigned size = 2; size <= sort_chunk; size *= 2)
    for (unsigned step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      const unsigned low = 2 * threadIdx.x - threadIdx.x % step, high = low + step;
      const bool ascending = (low & size) == 0;
      const uint64_t a = keys[low], b = keys[high];
      if ((a > b) == ascending) keys[low] = b, keys[high] = a;
    }
  __syncthreads();
  for (unsigned k = threadIdx.x; k < sort_chunk; k += sort_threads)
    if (begin + k < n) sorted[begin + k] = keys[k];
}

// Eight sorted runs beside each other, of a power of two of the n keys each, become one: a key's
// place in it is the number of keys before it in all eight, no two being equal. The eight binary
// searches go step by step together, so that their reads wait for memory together.
struct MergeRuns : Each {
  static constexpr int ways = 8;
  const uint64_t* sorted;
  size_t run, n;
  uint64_t* merged;
  __device__ void operator()(size_t i) const {
    const uint64_t key = sorted[i];
    const size_t first = i & ~(ways * run - 1);
    size_t before[ways] = {};
    for (size_t step = run; step > 0; step /= 2)
#pragma unroll
      for (int w = 0; w < ways; ++w) {
        const size_t last = before[w] + step - 1, at = first + w * run + last;
        if (last < run && at < n && sorted[at] < key) before[w] += step;
      }
    size_t place = first;
    for (const size_t keys : before) place += keys;
    merged[place] = key;
  }
};

// Where the keys of each index v, and of all after it, begin: first [V + 1].
struct FirstKeys : Each {
  const uint64_t* sorted;
  size_t n;
  uint32_t* first;
  __device__ void operator()(size_t v) const {
    size_t low = 0, high = n;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (sorted[middle] >> 32 < v)
        low = middle + 1;
      else
        high = middle;
    }
    first[v] = static_cast<uint32_t>(low);
  }
};

// The sorted keys are cut into chunks, so that a frequent index takes as long as many rare ones.
constexpr unsigned gather_threads = 128, gather_keys = 64, gather_at_once = 4;

constexpr unsigned column_slices(size_t channels, unsigned n) {
  return static_cast<unsigned>((channels + n * gather_threads - 1) / (n * gather_threads));
}

// The sums of dy over the equal keys of a chunk, n columns a thread: straight into dtable where the
// index has no others, else into partial [chunks, 2, C], the first row for the index that the chunk
// begins with, the second for one that begins later and goes on in the next chunk.
template <class T, int n>
__global__ void __launch_bounds__(gather_threads)
    embedding_sums_kernel(const T* dy, const uint64_t* sorted, size_t keys, size_t channels,
                          float* partial, Out dtable) {
  SHARED(uint64_t, near, [gather_keys + 2]);  // the chunk, and the keys before and after it
  const unsigned slices = column_slices(channels, n);
  const size_t chunk = blockIdx.x / slices, begin = chunk * gather_keys;
  const size_t column = n * (size_t{blockIdx.x % slices} * gather_threads + threadIdx.x);
  const auto count = static_cast<unsigned>(begin + gather_keys < keys ? gather_keys : keys - begin);
  for (unsigned k = threadIdx.x; k < count + 2; k += gather_threads)
    near[k] = begin + k > 0 && begin + k <= keys ? sorted[begin + k - 1] : ~uint64_t{0};
  __syncthreads();
  if (column >= channels) return;
  const auto index = [&](unsigned k) { return static_cast<uint32_t>(near[k + 1] >> 32); };
  const auto before = static_cast<uint32_t>(near[0] >> 32);
  float sum[n] = {};
  unsigned start = 0;  // of the keys that are summed
  for (unsigned k = 0; k < count; k += gather_at_once) {
    float rows[gather_at_once][n];
#pragma unroll
    for (unsigned j = 0; j < gather_at_once; ++j) {
      const unsigned at = k + j < count ? k + j : count - 1;
      read(dy + static_cast<uint32_t>(near[at + 1]) * channels + column, rows[j]);
    }
#pragma unroll
    for (unsigned j = 0; j < gather_at_once; ++j) {
      const unsigned at = k + j;
      if (at >= count) break;
      const uint32_t v = index(at);
#pragma unroll
      for (int c = 0; c < n; ++c) sum[c] += rows[j][c];
      const bool goes_on = v == index(at + 1);
      if (goes_on && at + 1 < count) continue;
      if (goes_on || (start == 0 && v == before))
        write(partial + (2 * chunk + (start > 0)) * channels + column, sum);
      else
        write(dtable, v * channels + column, sum);
      for (float& value : sum) value = 0;
      start = at + 1;
    }
  }
}

// dtable[v] for those v that have keys in several chunks, or none.
struct JoinChunks : EachInRows {
  const float* partial;
  const uint32_t* first;
  size_t channels;
  Out dtable;
  template <int n>
  __device__ void run(size_t v, size_t column) const {
    const size_t begin = first[v], end = first[v + 1];
    const size_t chunk = begin / gather_keys, last = (end - 1) / gather_keys;
    if (begin == end ? dtable.accumulate : chunk == last) return;
    float sum[n] = {};
    if (begin < end) {
      read(partial + (2 * chunk + (begin % gather_keys > 0)) * channels + column, sum);
#pragma unroll 8
      for (size_t later = chunk + 1; later <= last; ++later) {
        float values[n];
        read(partial + 2 * later * channels + column, values);
#pragma unroll
        for (int k = 0; k < n; ++k) sum[k] += values[k];
      }
    }
    write(dtable, v * channels + column, sum);
  }
};

// The keys of all positions, sorted.
Tensor sorted_keys(const Tensor& indices) {
  const int64_t N = indices.numel();
  const auto keys = [&] {  // 64 bits each
    return Tensor::empty({N, 2}, DType::i32, Device::cuda);
  };
  Tensor sorted = keys();
  if (N)
    launch<sort_positions_kernel>(blocks_for(N, sort_chunk), sort_threads, 0, stream(),
                                  in<int32_t>(indices), size(N), out<uint64_t>(sorted));
  for (size_t run = sort_chunk; run < size(N); run *= MergeRuns::ways) {
    const Tensor merged = keys();
    each(N, MergeRuns{{}, in<uint64_t>(sorted), run, size(N), out<uint64_t>(merged)});
    sorted = merged;
  }
  return sorted;
}

}  // namespace

void embedding_forward(const Tensor& table, const Tensor& indices, const Tensor& y) {
  dispatch("embedding", table.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    const int64_t C = table.dim(1);
    each_in_rows<n>(
        indices.numel(), C, packed(n, {C}, {table.raw(), y.raw()}),
        EmbeddingForward<T>{{}, in<T>(table), in<int32_t>(indices), size(C), out<T>(y)});
  });
}

void embedding_backward(const Tensor& dy, const Tensor& indices, const Destination& dtable) {
  const int64_t N = indices.numel(), V = dtable.tensor.dim(0), C = dy.dim(-1);
  check(N <= UINT32_MAX, "embedding: on a GPU takes fewer than 2^32 indices, got ", N);
  if (V * C == 0) return;
  const int64_t chunks = (N + gather_keys - 1) / gather_keys;
  const Tensor sorted = sorted_keys(indices);
  const Tensor partial = Tensor::empty({chunks, 2, C}, DType::f32, Device::cuda);
  const Tensor first = Tensor::empty({V + 1}, DType::i32, Device::cuda);
  each(V + 1, FirstKeys{{}, in<uint64_t>(sorted), size(N), out<uint32_t>(first)});
  dispatch("embedding", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto columns) {
      constexpr int n = decltype(columns)::value;
      launch<embedding_sums_kernel<T, n>>(
          grid_of(chunks * column_slices(size(C), n)), gather_threads, 0, stream(), in<T>(dy),
          in<uint64_t>(sorted), size(N), size(C), out<float>(partial), Out(dtable));
    };
    if (chunks == 0) return;
    constexpr int n = pack_of<T>;
    if (packed(n, {C}, {dy.raw(), dtable.tensor.raw()}))
      return run(std::integral_constant<int, n>{});
    run(std::integral_constant<int, 1>{});
  });
  constexpr int n = pack_of<float>;
  each_in_rows<n>(V, C, packed(n, {C}, {dtable.tensor.raw()}),
                  JoinChunks{{}, in<float>(partial), in<uint32_t>(first), size(C), dtable});
}

}  // namespace tapeformer::kernels::cuda
