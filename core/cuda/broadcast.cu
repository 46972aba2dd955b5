// Element-wise kernels of several tensors, under NumPy's broadcasting, and their gradients, which
// are summed over the dimensions along which an operand was repeated.
#include <array>

#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// How N operands are read where a result is written. Neighbouring dimensions that all walk alike
// are merged, sizes of 1 dropped. Innermost first; a stride of 0 repeats. The innermost dimension
// makes the result's rows; operands walk it by 1 or repeat.
template <int N>
struct Walk {
  int rank = 0;
  int64_t sizes[Shape::max_rank] = {}, strides[N][Shape::max_rank] = {};

  Walk(const Shape& result, const std::array<const Shape*, N>& operands) {
    std::array<int64_t, N> walked;
    walked.fill(1);
    for (int back = 1; back <= result.rank(); ++back) {
      const int64_t size = result[-back];
      std::array<int64_t, N> stride{};
      for (int k = 0; k < N; ++k)
        if (back <= operands[k]->rank() && (*operands[k])[-back] != 1) {
          stride[k] = walked[k];
          walked[k] *= size;
        }
      if (size != 1) append(size, stride);
    }
  }

  int64_t width() const { return rank > 0 ? sizes[0] : 1; }

  // Whether packs of n columns lie together in all operands that walk the rows, and in `data`.
  bool packs(int64_t n, std::initializer_list<const void*> data) const {
    bool whole = packed(n, {width()}, data);
    for (int k = 0; k < N; ++k)
      for (int d = 1; d < rank && strides[k][0]; ++d) whole = whole && strides[k][d] % n == 0;
    return whole;
  }

  // n columns of operand k, which begins at x.
  template <int n, class T>
  __device__ Pack<T, n> load(int k, const T* x, size_t row, size_t column) const {
    size_t at = 0;
#pragma unroll 1
    for (int d = 1; d + 1 < rank; ++d) {
      at += row % size(sizes[d]) * size(strides[k][d]);
      row /= size(sizes[d]);
    }
    if (rank > 1) at += row * size(strides[k][rank - 1]);
    if (strides[k][0]) return tapeformer::cuda::load<n>(x + at + column);
    Pack<T, n> same;
#pragma unroll
    for (int j = 0; j < n; ++j) same.at[j] = x[at];
    return same;
  }

 private:
  void append(int64_t size, const std::array<int64_t, N>& stride) {
    bool merge = rank > 0;
    for (int k = 0; k < N && merge; ++k)
      merge = stride[k] == strides[k][rank - 1] * sizes[rank - 1];
    if (merge) {
      sizes[rank - 1] *= size;
      return;
    }
    sizes[rank] = size;
    for (int k = 0; k < N; ++k) strides[k][rank] = stride[k];
    ++rank;
  }
};

__device__ inline float binary_value(Binary op, float a, float b) {
  switch (op) {
    case Binary::add:
      return a + b;
    case Binary::sub:
      return a - b;
    case Binary::mul:
      return a * b;
    case Binary::div:
      return a / b;
    default:
      return powf(a, b);
  }
}

// The partial derivative by a (first) or b. d a^b = b a^(b-1) da + a^b log(a) db; where a factor of
// 0 meets an infinite one, 0 is the limit.
__device__ inline float binary_partial(Binary op, bool first, float a, float b) {
  switch (op) {
    case Binary::add:
      return 1;
    case Binary::sub:
      return first ? 1 : -1;
    case Binary::mul:
      return first ? b : a;
    case Binary::div:
      return first ? 1 / b : -(a / b) / b;
    default:
      if (first) return b == 0 ? 0 : b * powf(a, b - 1);
      return a == 0 && b >= 0 ? 0 : powf(a, b) * logf(a);
  }
}

template <class F>
__device__ void with_binary(Binary op, const F& f) {
  with_constant<Binary::add, Binary::sub, Binary::mul, Binary::div, Binary::pow>(op, f);
}

template <class T>
struct BinaryForward : EachInRows {
  const T *a, *b;
  Binary op;
  Walk<2> walk;
  size_t width;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const auto left = walk.load<n>(0, a, row, column), right = walk.load<n>(1, b, row, column);
    float values[n];
    with_binary(op, [&](auto constant) {
#pragma unroll
      for (int k = 0; k < n; ++k)
        values[k] = binary_value(constant, to_float(left.at[k]), to_float(right.at[k]));
    });
    write(y + row * width + column, values);
  }
};

template <class T>
struct BinaryBackward : EachInRows {
  const T *dy, *a, *b;
  Binary op;
  bool first;
  Walk<2> walk;
  size_t width;
  Out d;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const auto left = walk.load<n>(0, a, row, column), right = walk.load<n>(1, b, row, column);
    float slopes[n];
    read(dy + row * width + column, slopes);
    with_binary(op, [&](auto constant) {
#pragma unroll
      for (int k = 0; k < n; ++k)
        slopes[k] *= binary_partial(constant, first, to_float(left.at[k]), to_float(right.at[k]));
    });
    write(d, row * width + column, slopes);
  }
};

constexpr int where_n = 4;  // columns at a time, as many as there are i32 in 16 bytes

template <class T>
struct WhereForward : EachInRows {
  const int32_t* condition;
  const T *a, *b;
  Walk<3> walk;
  size_t width;
  T* y;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const auto which = walk.load<n>(0, condition, row, column);
    const auto yes = walk.load<n>(1, a, row, column);
    auto values = walk.load<n>(2, b, row, column);
#pragma unroll
    for (int k = 0; k < n; ++k)
      if (which.at[k]) values.at[k] = yes.at[k];
    store(y + row * width + column, values);
  }
};

template <class T>
struct WhereBackward : EachInRows {
  const T* dy;
  const int32_t* condition;
  bool first;
  Walk<1> walk;
  size_t width;
  Out d;
  template <int n>
  __device__ void run(size_t row, size_t column) const {
    const auto which = walk.load<n>(0, condition, row, column);
    float slopes[n];
    read(dy + row * width + column, slopes);
#pragma unroll
    for (int k = 0; k < n; ++k)
      if ((which.at[k] != 0) != first) slopes[k] = 0;
    write(d, row * width + column, slopes);
  }
};

template <class T>
struct AddTo : EachPack {
  const T* x;
  Out d;
  template <int n>
  __device__ void run(size_t i) const {
    float values[n];
    read(x + i, values);
    write(d, i, values);
  }
};

void add_to(const Tensor& x, const Destination& d) {
  dispatch("binary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each_pack<pack_of<T>>(x.numel(), AddTo<T>{{}, in<T>(x), d}, {x.raw(), d.tensor.raw()});
  });
}

// d (+)= x summed over the dimensions along which d's shape was repeated to give `shape`, x's.
void sum_to(const Tensor& x, const Shape& shape, const Destination& d) {
  // Merged, the dimensions alternate between kept ones (stride not 0) and repeated ones.
  const Walk<1> walk(shape, {&d.tensor.shape()});
  int repeated = 0;
  for (int i = 0; i < walk.rank; ++i) repeated += walk.strides[0][i] == 0;
  if (repeated == 0) return add_to(x, d);
  Tensor current = x;
  int64_t outer = shape.numel(), inner = 1;
  if (outer == 0) {
    if (!d.accumulate) fill(d.tensor, 0);
    return;
  }
  for (int i = 0; i < walk.rank; ++i) {  // innermost first
    const int64_t n = walk.sizes[i];
    outer /= n;
    if (walk.strides[0][i] != 0) {
      inner *= n;
      continue;
    }
    const bool last = --repeated == 0;
    const Destination next =
        last ? d : Destination{Tensor::empty({outer, inner}, DType::f32, Device::cuda)};
    sum_middle(current, outer, n, inner, 1, next);
    current = next.tensor;
  }
}

// Where an operand was repeated its gradient is first made for every element, in f32.
Destination before_summing(const Tensor& dy, const Destination& d) {
  if (d.tensor.numel() == dy.numel()) return d;
  return {Tensor::empty(dy.shape(), DType::f32, Device::cuda)};
}

template <int n, int N, class F>
void each_in_walk(const Walk<N>& walk, const Tensor& y, const F& f,
                  std::initializer_list<const void*> data) {
  if (y.numel() == 0) return;
  each_in_rows<n>(y.numel() / walk.width(), walk.width(), walk.packs(n, data), f);
}

}  // namespace

void binary_forward(const Tensor& a, const Tensor& b, Binary op, const Tensor& y) {
  const Walk<2> walk(y.shape(), {&a.shape(), &b.shape()});
  const auto width = size(walk.width());
  dispatch("binary", a.dtype(), [&](auto type) {
    using T = decltype(type);
    each_in_walk<pack_of<T>>(walk, y,
                             BinaryForward<T>{{}, in<T>(a), in<T>(b), op, walk, width, out<T>(y)},
                             {a.raw(), b.raw(), y.raw()});
  });
}

void binary_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Binary op, bool first,
                     const Destination& d) {
  if (op == Binary::add || (op == Binary::sub && first)) return sum_to(dy, dy.shape(), d);
  // dy stands in for an operand that this partial derivative does not read.
  const Tensor &left = a.defined() ? a : dy, &right = b.defined() ? b : dy;
  const Destination each_element = before_summing(dy, d);
  const Walk<2> walk(dy.shape(), {&left.shape(), &right.shape()});
  const auto width = size(walk.width());
  dispatch("binary", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    each_in_walk<pack_of<T>>(
        walk, dy,
        BinaryBackward<T>{
            {}, in<T>(dy), in<T>(left), in<T>(right), op, first, walk, width, each_element},
        {dy.raw(), left.raw(), right.raw(), each_element.tensor.raw()});
  });
  if (d.tensor.numel() != dy.numel()) sum_to(each_element.tensor, dy.shape(), d);
}

void where_forward(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  const Walk<3> walk(y.shape(), {&condition.shape(), &a.shape(), &b.shape()});
  const auto width = size(walk.width());
  const auto run = [&](auto type) {
    using T = decltype(type);
    each_in_walk<where_n>(
        walk, y,
        WhereForward<T>{{}, in<int32_t>(condition), in<T>(a), in<T>(b), walk, width, out<T>(y)},
        {condition.raw(), a.raw(), b.raw(), y.raw()});
  };
  if (a.dtype() == DType::i32) return run(int32_t{});
  dispatch("where", a.dtype(), run);
}

void where_backward(const Tensor& dy, const Tensor& condition, bool first, const Destination& d) {
  const Destination each_element = before_summing(dy, d);
  const Walk<1> walk(dy.shape(), {&condition.shape()});
  const auto width = size(walk.width());
  dispatch("where", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    each_in_walk<where_n>(
        walk, dy,
        WhereBackward<T>{{}, in<T>(dy), in<int32_t>(condition), first, walk, width, each_element},
        {dy.raw(), condition.raw(), each_element.tensor.raw()});
  });
  if (d.tensor.numel() != dy.numel()) sum_to(each_element.tensor, dy.shape(), d);
}

}  // namespace tapeformer::kernels::cuda
