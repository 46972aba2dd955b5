// Random tensors and dropout, from Philox: a number depends on its key and index alone, so these
// draw what the CPU draws.
#include "core/cuda/pack.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// A Philox block serves four elements.
template <class T>
struct Dropout : EachPack {
  const T* x;
  float p, scale;
  RandomKey key;
  Out y;
  template <int n>
  __device__ void run(size_t i) const {
    float values[n];
    read(x + i, values);
#pragma unroll
    for (int k = 0; k < n; k += 4) {
      const Philox4 words = key.block(static_cast<uint32_t>((i + k) / 4));
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        if (n == 1 && i % 4 != j) continue;
        float& value = values[n == 1 ? 0 : static_cast<unsigned>(k) + j];
        value = uniform(words[j]) >= p ? value * scale : 0;
      }
    }
    write(y, i, values);
  }
};

// The next two make the four elements of one block.
// The four words give two pairs by Box & Muller's method, in double as on the CPU.
struct FillNormal : Each {
  size_t n;
  double mean, deviation;
  RandomKey key;
  Out x;
  __device__ void operator()(size_t block) const {
    const Philox4 words = key.block(static_cast<uint32_t>(block));
    for (size_t i = 0; i < 4 && 4 * block + i < n; i += 2) {
      const size_t at = 4 * block + i;
      const double radius = sqrt(-2.0 * log((words[i] + 0.5) * 0x1p-32));
      const double angle = 2.0 * 3.14159265358979323846 * (words[i + 1] * 0x1p-32);
      x.write(at, static_cast<float>(mean + deviation * (radius * cos(angle))));
      if (at + 1 < n) x.write(at + 1, static_cast<float>(mean + deviation * (radius * sin(angle))));
    }
  }
};

struct FillUniform : Each {
  size_t n;
  float low, width, last;
  RandomKey key;
  Out x;
  __device__ void operator()(size_t block) const {
    const Philox4 words = key.block(static_cast<uint32_t>(block));
    for (size_t i = 0; i < 4 && 4 * block + i < n; ++i)
      x.write(4 * block + i, fminf(low + width * uniform(words[i]), last));
  }
};

int64_t philox_blocks(const Tensor& x) { return (x.numel() + 3) / 4; }

// Throws for a dtype that a GPU does not compute in.
void check_dtype(const char* operation, const Tensor& x) {
  dispatch(operation, x.dtype(), [](auto) {});
}

}  // namespace

void dropout(const Tensor& x, double p, RandomKey key, const Destination& y) {
  dispatch("dropout", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each_pack<pack_of<T>>(
        x.numel(),
        Dropout<T>{{}, in<T>(x), static_cast<float>(p), static_cast<float>(1 / (1 - p)), key, y},
        {x.raw(), y.tensor.raw()});
  });
}

void fill_normal(const Tensor& x, double mean, double deviation, RandomKey key) {
  check_dtype("fill_normal", x);
  each(philox_blocks(x), FillNormal{{}, static_cast<size_t>(x.numel()), mean, deviation, key, x});
}

void fill_uniform(const Tensor& x, double low, double high, RandomKey key) {
  check_dtype("fill_uniform", x);
  const auto a = static_cast<float>(low), b = static_cast<float>(high);
  each(philox_blocks(x), FillUniform{{},
                                     static_cast<size_t>(x.numel()),
                                     a,
                                     static_cast<float>(high - low),
                                     std::nextafter(b, a),
                                     key,
                                     x});
}

}  // namespace tapeformer::kernels::cuda
