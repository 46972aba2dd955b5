// Softmax, cross-entropy and its gradient, a block for each row of logits.
#include "core/cuda/row.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

constexpr unsigned count_threads = 256;

__global__ void __launch_bounds__(count_threads)
    count_targets_kernel(const int32_t* target, size_t n, int32_t ignore_index, Out count) {
  float counted = 0;  // exact up to 2^24 targets for each thread
  for (size_t i = threadIdx.x; i < n; i += count_threads) counted += target[i] != ignore_index;
  counted = block_sum<count_threads>(counted);
  if (threadIdx.x == 0) count.write(0, fmaxf(counted, 1));
}

// With l = x - max x, Z = sum_v exp(l_v) and q = (1 - s) onehot(target) + s / V:
//   loss = -sum_v q_v (l_v - log Z) = log Z - (1 - s) l_target - s mean(l);
//   dloss / dx_v = exp(l_v) / Z - q_v
// (from the softmax's Jacobian; Bishop 2006, eq. 4.109). The first pass over the row keeps a
// running maximum, and corrects the sum so far when it grows; dlogits may be logits itself.
template <unsigned threads, class T>
__global__ void __launch_bounds__(threads)
    cross_entropy_kernel(const T* logits, const int32_t* targets, In count, size_t V, bool wide,
                         int32_t ignore_index, float smoothing, Out losses, Out dlogits) {
  const size_t n = blockIdx.x;
  const T* x = logits + n * V;
  const int32_t target = targets[n];
  const bool counts = target != ignore_index;
  float largest = -INFINITY, Z = 0, total = 0;
  if (counts)
    for_each_in_row<threads, pack_of<T>>(V, wide, [&](auto pack, size_t v) {
      float values[pack];
      read(x + v, values);
      for (const float value : values) {
        if (value > largest) {
          Z *= expf(largest - value);
          largest = value;
        }
        Z += expf(value - largest);
        total += value;
      }
    });
  const float row_largest = block_max<threads>(largest);
  Z = block_sum<threads>(largest == -INFINITY ? Z : Z * expf(largest - row_largest));
  total = block_sum<threads>(total);
  if (threadIdx.x == 0) {
    const float l_target = counts ? to_float(x[target]) - row_largest : 0;
    const float mean_l = total / V - row_largest;
    const float smoothed = smoothing == 0 ? 0 : smoothing * mean_l;
    losses.write(n, counts ? logf(Z) - (1 - smoothing) * l_target - smoothed : 0);
  }
  if (!dlogits.data) return;
  __syncthreads();  // the loss has read x[target], which may be overwritten now
  const float share = 1 / count.read(0), scale = share / Z, uniform = smoothing / V * share;
  for_each_in_row<threads, pack_of<T>>(V, wide, [&](auto pack, size_t v) {
    float slopes[pack];
    read(x + v, slopes);
    for (int k = 0; k < pack; ++k) {
      slopes[k] = counts ? expf(slopes[k] - row_largest) * scale - uniform : 0;
      if (counts && static_cast<int32_t>(v) + k == target) slopes[k] -= (1 - smoothing) * share;
    }
    write(dlogits, n * V + v, slopes);
  });
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
  dispatch("cross_entropy", logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto threads) {
      launch<cross_entropy_kernel<decltype(threads)::value, T>>(
          static_cast<unsigned>(N), decltype(threads)::value, 0, stream(), in<T>(logits),
          in<int32_t>(targets), In(count), static_cast<size_t>(V),
          wide_rows<T>(V, {logits, dlogits}), ignore_index, static_cast<float>(smoothing),
          Out(losses), Out(Destination{dlogits}));
    };
    if (V <= 1024) return run(std::integral_constant<unsigned, 32>{});
    run(std::integral_constant<unsigned, 512>{});
  });
}

}  // namespace tapeformer::kernels::cuda
