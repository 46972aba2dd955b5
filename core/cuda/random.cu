// Random tensors and dropout, from Philox: a number depends on its key and index alone, so these
// draw what the CPU draws.
#include "core/cuda/device.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// Each of these makes the four elements of one Philox block.
template <class T>
struct Dropout : Each {
  const T* x;
  size_t n;
  float p, scale;
  RandomKey key;
  Out y;
  __device__ void operator()(size_t block) const {
    const Philox4 words = key.block(static_cast<uint32_t>(block));
    for (size_t i = 0; i < 4 && 4 * block + i < n; ++i) {
      const size_t at = 4 * block + i;
      y.write(at, uniform(words[i]) >= p ? to_float(x[at]) * scale : 0);
    }
  }
};

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
    each(philox_blocks(x), Dropout<T>{{},
                                      in<T>(x),
                                      static_cast<size_t>(x.numel()),
                                      static_cast<float>(p),
                                      static_cast<float>(1 / (1 - p)),
                                      key,
                                      y});
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
