// Softmax, cross-entropy and its gradient, a block for each row of logits.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

constexpr unsigned count_threads = 1024;

__global__ void __launch_bounds__(count_threads)
    count_targets_kernel(const int32_t* target, size_t n, int32_t ignore_index, Out count) {
  float counted = 0;  // exact up to 2^24
  for (size_t i = threadIdx.x; i < n; i += count_threads) counted += target[i] != ignore_index;
  counted = block_sum(counted);
  if (threadIdx.x == 0) count.write(0, fmaxf(counted, 1));
}

// With l = x - max x, Z = sum_v exp(l_v) and q = (1 - s) onehot(target) + s / V:
//   loss = -sum_v q_v (l_v - log Z) = log Z - (1 - s) l_target - s mean(l);
//   dloss / dx_v = exp(l_v) / Z - q_v
// (from the softmax's Jacobian; Bishop 2006, eq. 4.109). The first pass over the row keeps a
// running maximum, and corrects the sum so far when it grows; the second finds the row in the L2
// cache, which holds those of two blocks of 1024 threads on each multiprocessor. dlogits may be
// logits itself.
template <int threads, class T, class D>
__global__ void __launch_bounds__(threads, threads == 1024 ? 2 : 1)
    cross_entropy_kernel(const T* logits, const int32_t* targets, In count, size_t V, bool packs,
                         int32_t ignore_index, float smoothing, Out losses, D* dlogits) {
  constexpr int n = pack_of<T>;
  const T* x = logits + blockIdx.x * V;
  D* dx = dlogits ? dlogits + blockIdx.x * V : nullptr;
  const int32_t target = targets[blockIdx.x];
  if (target == ignore_index) {  // for the whole block
    if (threadIdx.x == 0) losses.write(blockIdx.x, 0);
    if (dx)
      for_each_in_row<threads, n>(V, packs, [&](auto pack, size_t v) {
        const float zeros[pack] = {};
        write(dx + v, zeros);
      });
    return;
  }
  float largest = -FLT_MAX;  // finite: l of -inf is then -inf, and never NaN
  float sums[2] = {};        // Z, and of the logits where they are smoothed
  for_each_in_row<threads, n>(V, packs, [&](auto pack, size_t v) {
    float values[pack], grown = largest;
    read(x + v, values);
    for (const float value : values) grown = fmaxf(grown, value);
    sums[0] *= fast_exp(largest - grown);
    largest = grown;
    for (const float value : values) sums[0] += fast_exp(value - largest);
    if (smoothing != 0)
      for (const float value : values) sums[1] += value;
  });
  const float row_largest = block_max(largest);
  sums[0] *= fast_exp(largest - row_largest);
  block_sum(sums);
  const float Z = sums[0], uniform = smoothing / V;
  float l_target = 0;
  if (threadIdx.x == 0) {
    l_target = to_float(x[target]) - row_largest;
    losses.write(blockIdx.x, logf(Z) - (1 - smoothing) * l_target -
                                 (uniform * sums[1] - smoothing * row_largest));
  }
  if (!dx) return;
  __syncthreads();  // x[target] has been read, and may be overwritten
  const float share = 1 / count.read(0), scale = share / Z;
  for_each_in_row<threads, n>(V, packs, [&](auto pack, size_t v) {
    float slopes[pack];
    read(x + v, slopes);
    for (float& slope : slopes) slope = fast_exp(slope - row_largest) * scale - uniform * share;
    write(dx + v, slopes);
  });
  __syncthreads();  // what the target has as any other has been written
  if (threadIdx.x == 0)
    dx[target] = from_float<D>(fast_exp(l_target) * scale - (uniform + (1 - smoothing)) * share);
}

}  // namespace

void count_targets(const Tensor& targets, int32_t ignore_index, const Tensor& count) {
  launch<count_targets_kernel>(1, count_threads, 0, stream(), in<int32_t>(targets),
                               static_cast<size_t>(targets.numel()), ignore_index, Out(count));
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& count,
                   int32_t ignore_index, double smoothing, const Tensor& losses,
                   const Tensor& dlogits) {
  const int64_t N = targets.numel(), V = logits.dim(-1);
  if (N == 0) return;
  const DType gradient = (dlogits.defined() ? dlogits : logits).dtype();
  dispatch("cross_entropy", logits.dtype(), [&](auto logit) {
    dispatch("cross_entropy", gradient, [&](auto slope) {
      using T = decltype(logit);
      using D = decltype(slope);
      const auto run = [&](auto threads) {
        if constexpr (std::is_same_v<T, D> || std::is_same_v<T, float>)
          launch<cross_entropy_kernel<threads, T, D>>(
              grid_of(N), static_cast<unsigned>(threads), 0, stream(), in<T>(logits),
              in<int32_t>(targets), In(count), size(V), packed_rows<T>(V, {logits, dlogits}),
              ignore_index, static_cast<float>(smoothing), Out(losses), out<D>(dlogits));
        else
          fail("cross_entropy: on a GPU the gradient of ", logits.dtype(),
               " logits has their dtype, got ", gradient,
               "; convert them with cast(x, DType::f32)");
      };
      if (V <= 1024) return run(std::integral_constant<int, 32>{});
      if (V <= 8192) return run(std::integral_constant<int, 256>{});
      run(std::integral_constant<int, 1024>{});
    });
  });
}

}  // namespace tapeformer::kernels::cuda
