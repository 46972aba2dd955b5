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
    *reinterpret_cast<Pack<T, n>*>(y + row * channels + column) =
        *reinterpret_cast<const Pack<T, n>*>(from + column);
  }
};

constexpr unsigned sort_threads = 512, sort_chunk = 2 * sort_threads;

// The keys (index, n) of one chunk of 1024 positions n, sorted (Batcher 1968, the bitonic network).
// Positions past the end come last.
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
  for (unsigned k = threadIdx.x; k < sort_chunk; k += sort_threads) sorted[begin + k] = keys[k];
}

constexpr unsigned gather_threads = 128, lane_columns = 4;

// dtable[v] (+)= the sum of dy over the positions of v, in their order: one warp for each v and
// 128 columns. Each lane finds where v begins in another chunk, then all follow chunk by chunk.
template <class T>
__global__ void __launch_bounds__(gather_threads)
    embedding_backward_kernel(const T* dy, const uint64_t* sorted, size_t chunks, size_t vocabulary,
                              size_t channels, Out dtable) {
  const unsigned lane = threadIdx.x % 32;
  const size_t warp = (size_t{blockIdx.x} * gather_threads + threadIdx.x) / 32;
  const size_t slices = (channels + 32 * lane_columns - 1) / (32 * lane_columns);
  const size_t v = warp / slices, first_column = warp % slices * 32 * lane_columns + lane;
  if (v >= vocabulary) return;  // a whole warp
  float sum[lane_columns] = {};
  for (size_t base = 0; base < chunks; base += 32) {
    unsigned low = 0, high = base + lane < chunks ? sort_chunk : 0;
    const uint64_t* keys = sorted + (base + lane) * sort_chunk;
    while (low < high) {
      const unsigned middle = (low + high) / 2;
      if (keys[middle] >> 32 < v)
        low = middle + 1;
      else
        high = middle;
    }
    for (size_t chunk = base; chunk < base + 32 && chunk < chunks; ++chunk) {
      const unsigned begin = __shfl_sync(whole_warp, low, static_cast<int>(chunk - base));
      for (unsigned k = begin; k < sort_chunk; ++k) {
        const uint64_t key = sorted[chunk * sort_chunk + k];
        if (key >> 32 != v) break;
        const T* row = dy + (key & 0xffffffffu) * channels;
        for (unsigned j = 0; j < lane_columns; ++j)
          if (first_column + 32 * j < channels) sum[j] += to_float(row[first_column + 32 * j]);
      }
    }
  }
  for (unsigned j = 0; j < lane_columns; ++j)
    if (first_column + 32 * j < channels)
      dtable.write(v * channels + first_column + 32 * j, sum[j]);
}

}  // namespace

void embedding_forward(const Tensor& table, const Tensor& indices, const Tensor& y) {
  dispatch("embedding", table.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    const int64_t C = table.dim(1);
    each_in_rows<n>(indices.numel(), C, packed(n, {C}, {table.raw(), y.raw()}),
                    EmbeddingForward<T>{
                        {}, in<T>(table), in<int32_t>(indices), static_cast<size_t>(C), out<T>(y)});
  });
}

void embedding_backward(const Tensor& dy, const Tensor& indices, const Destination& dtable) {
  const int64_t N = indices.numel(), V = dtable.tensor.dim(0), C = dy.dim(-1);
  check(N <= UINT32_MAX, "embedding: on a GPU at most 2^32 indices, got ", N);
  const int64_t chunks = (N + sort_chunk - 1) / sort_chunk;
  // Two i32 make one key.
  const Tensor sorted = Tensor::empty({chunks, sort_chunk, 2}, DType::i32, Device::cuda);
  if (chunks)
    launch<sort_positions_kernel>(static_cast<unsigned>(chunks), sort_threads, 0, stream(),
                                  in<int32_t>(indices), static_cast<size_t>(N),
                                  out<uint64_t>(sorted));
  const int64_t slices = (C + 32 * lane_columns - 1) / (32 * lane_columns);
  if (V * slices == 0) return;
  dispatch("embedding", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    launch<embedding_backward_kernel<T>>(
        blocks_for(V * slices, gather_threads / 32), gather_threads, 0, stream(), in<T>(dy),
        in<uint64_t>(sorted), static_cast<size_t>(chunks), static_cast<size_t>(V),
        static_cast<size_t>(C), Out(dtable));
  });
}

}  // namespace tapeformer::kernels::cuda
