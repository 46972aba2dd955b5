// Kernels that move elements: rearranged dimensions, and ranges of one dimension.
#include <array>

#include "core/cuda/sums.cuh"

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

// `rows` rows of `length` elements, whose starts are x_step and y_step apart.
template <class T>
struct CopyRows : Each {
  const T* x;
  size_t x_step;
  T* y;
  size_t y_step, length;
  bool accumulate;
  __device__ void operator()(size_t i) const {
    const size_t row = i / length, column = i % length;
    put(y + row * y_step + column, x[row * x_step + column], accumulate);
  }
};

template <class T>
struct SliceBackward : Each {
  const T* dy;
  size_t n, start, count, inner;  // elements [start, start + count) of n
  Out dx;
  __device__ void operator()(size_t i) const {
    const size_t place = i / inner % n;
    if (place < start || place >= start + count) {
      if (!dx.accumulate) dx.write(i, 0);
      return;
    }
    const size_t outer = i / (n * inner);
    dx.write(i, to_float(dy[(outer * count + place - start) * inner + i % inner]));
  }
};

template <class F>
void dispatch_number(const char* operation, DType dtype, F&& f) {
  if (dtype == DType::i32) return f(int32_t{});
  dispatch(operation, dtype, f);
}

size_t size(int64_t n) { return static_cast<size_t>(n); }

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
  dispatch_number("slice", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(y.tensor.numel(), CopyRows<T>{{},
                                       in<T>(x) + start * whole.inner,
                                       size(whole.n * whole.inner),
                                       out<T>(y.tensor),
                                       size(part.n * part.inner),
                                       size(part.n * part.inner),
                                       y.accumulate});
  });
}

void slice_write(const Tensor& x, int dim, int64_t start, const Destination& y) {
  const Around part(x.shape(), dim), whole(y.tensor.shape(), dim);
  dispatch_number("slice", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), CopyRows<T>{{},
                                in<T>(x),
                                size(part.n * part.inner),
                                out<T>(y.tensor) + start * whole.inner,
                                size(whole.n * whole.inner),
                                size(part.n * part.inner),
                                y.accumulate});
  });
}

void slice_backward(const Tensor& dy, int dim, int64_t start, const Destination& dx) {
  const Around part(dy.shape(), dim), whole(dx.tensor.shape(), dim);
  dispatch("slice", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    each(dx.tensor.numel(),
         SliceBackward<T>{
             {}, in<T>(dy), size(whole.n), size(start), size(part.n), size(whole.inner), dx});
  });
}

}  // namespace tapeformer::kernels::cuda
