// 16-bit heads as float ones, and back.
#include <algorithm>

#include "core/cpu/attention.h"

namespace tapeformer::cpu {
namespace {

// Calls f(wide, narrow, channels) for each row of heads, which are contiguous there and strided
// here.
template <class H, class F>
void each_row(const Heads& wide, const Heads& narrow, const F& f) {
  const int64_t rows = wide.tensor.dim(1), channels = wide.tensor.dim(2);
  float* floats = wide.tensor.data<float>();
  H* first = narrow.tensor.data<H>() + narrow.offset;
  parallel_pieces(
      wide.tensor.dim(0) * rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(channels, 1)),
      channels, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n)
          f(floats + n * channels,
            first + n / rows * narrow.batch_stride + n % rows * narrow.row_stride, channels);
      });
}

}  // namespace

Heads wide_like(const Heads& heads, int64_t batch, int64_t rows, int64_t channels) {
  if (!heads) return {};
  return {Tensor::empty({batch, rows, channels}), 0, rows * channels, channels};
}

Heads widened(const Heads& heads, int64_t batch, int64_t rows, int64_t channels) {
  const Heads wide = wide_like(heads, batch, rows, channels);
  dispatch_floating("attention", heads.tensor.dtype(), [&](auto type) {
    each_row<decltype(type)>(wide, heads, [](float* to, const auto* from, int64_t n) {
      row_write(n, to, false, [=](int64_t i) { return from[i]; });
    });
  });
  return wide;
}

void round_heads(const Heads& from, const Heads& to) {
  if (!to) return;
  dispatch_floating("attention", to.tensor.dtype(), [&](auto type) {
    each_row<decltype(type)>(from, to, [&](const float* wide, auto* narrow, int64_t n) {
      row_write(n, narrow, to.accumulate, [=](int64_t i) { return wide[i]; });
    });
  });
}

}  // namespace tapeformer::cpu
