// Kernels that move elements: rearranged dimensions, and ranges of one dimension.
#include <array>

#include "core/cuda/pack.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

template <class T>
__device__ void put(T* y, T x, bool accumulate) {
  if constexpr (std::is_same_v<T, int32_t>)
    *y = accumulate ? *y + x : x;
  else
    *y = accumulate ? from_float<T>(to_float(*y) + to_float(x)) : x;
}

// Element i of y is read where the strides of x, in y's order of dimensions, say.
template <class T>
struct Permute : Each {
  const T* x;
  int rank;
  int64_t sizes[Shape::max_rank], strides[Shape::max_rank];  // outermost first
  T* y;
  bool accumulate;
  __device__ void operator()(size_t i) const {
    size_t from = 0, rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      from += rest % static_cast<size_t>(sizes[d]) * static_cast<size_t>(strides[d]);
      rest /= static_cast<size_t>(sizes[d]);
    }
    put(y + i, x[from], accumulate);
  }
};

// Rows whose starts are x_step and y_step apart.
template <class T>
struct CopyRows : EachInRows {
  const T* x;
  size_t x_step;
  T* y;
  size_t y_step;
  bool accumulate;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const auto from = load<n>(x + row * x_step + column);
    T* to = y + row * y_step + column;
    Pack<T, n> values{};
    if (accumulate) values = load<n>(to);
#pragma unroll
    for (int k = 0; k < n; ++k) put(values.at + k, from.at[k], accumulate);
    store(to, values);
  }
};

// Of each row of `width` the part [begin, begin + length) is that of dy.
template <class T>
struct SliceBackward : EachInRows {
  const T* dy;
  size_t width, begin, length;
  Out dx;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    float slopes[n] = {};
    if (column >= begin && column < begin + length)
      read(dy + row * length + column - begin, slopes);
    else if (dx.accumulate)
      return;
    write(dx, row * width + column, slopes);
  }
};

// The rows of a tensor that begin at element `start` and `step` apart.
struct Rows {
  const Tensor& tensor;
  int64_t start, step;
};

// y (+)= x, both of `rows` rows of `length`.
void copy_rows(int64_t rows, int64_t length, const Rows& x, const Rows& y, bool accumulate) {
  dispatch_number("slice", x.tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    const CopyRows<T> copy{{},           in<T>(x.tensor) + x.start,
                           size(x.step), out<T>(y.tensor) + y.start,
                           size(y.step), accumulate};
    each_in_rows<n>(rows, length, packed(n, {length, x.step, y.step}, {copy.x, copy.y}), copy);
  });
}

}  // namespace

void permute(const Tensor& x, const std::vector<int>& order, const Destination& y) {
  dispatch_number("permute", x.dtype(), [&](auto type) {
    using T = decltype(type);
    std::array<int64_t, Shape::max_rank> stride{};
    int64_t elements = 1;
    for (int i = x.rank() - 1; i >= 0; elements *= x.dim(i), --i) stride[i] = elements;
    Permute<T> permute{};
    permute.x = in<T>(x);
    permute.rank = x.rank();
    for (int i = 0; i < x.rank(); ++i) {
      permute.sizes[i] = x.dim(order[i]);
      permute.strides[i] = stride[order[i]];
    }
    permute.y = out<T>(y.tensor);
    permute.accumulate = y.accumulate;
    each(x.numel(), permute);
  });
}

void slice_read(const Tensor& x, int dim, int64_t start, const Destination& y) {
  const Around whole(x.shape(), dim), part(y.tensor.shape(), dim);
  copy_rows(part.outer, part.n * part.inner, {x, start * whole.inner, whole.n * whole.inner},
            {y.tensor, 0, part.n * part.inner}, y.accumulate);
}

void slice_write(const Tensor& x, int dim, int64_t start, const Destination& y) {
  const Around part(x.shape(), dim), whole(y.tensor.shape(), dim);
  copy_rows(part.outer, part.n * part.inner, {x, 0, part.n * part.inner},
            {y.tensor, start * whole.inner, whole.n * whole.inner}, y.accumulate);
}

void slice_backward(const Tensor& dy, int dim, int64_t start, const Destination& dx) {
  const Around part(dy.shape(), dim), whole(dx.tensor.shape(), dim);
  const int64_t width = whole.n * whole.inner, begin = start * whole.inner,
                length = part.n * part.inner;
  dispatch("slice", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_of<T>;
    each_in_rows<n>(whole.outer, width,
                    packed(n, {width, begin, length}, {dy.raw(), dx.tensor.raw()}),
                    SliceBackward<T>{{}, in<T>(dy), size(width), size(begin), size(length), dx});
  });
}

}  // namespace tapeformer::kernels::cuda
