// Element-wise kernels of several tensors, under NumPy's broadcasting, and their gradients, which
// are summed over the dimensions along which an operand was repeated.
#include <array>

#include "core/cuda/sums.cuh"

namespace tapeformer::kernels::cuda {
namespace {

using namespace tapeformer::cuda;

// How N operands are read where a result is written. Neighbouring dimensions that all walk alike
// are merged, sizes of 1 dropped. Innermost first; a stride of 0 repeats.
template <int N>
struct Walk {
  int rank = 0;
  uint32_t sizes[Shape::max_rank] = {};
  int64_t strides[N][Shape::max_rank] = {};

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

  // The index in operand k of element i of the result.
  __device__ size_t index(int k, size_t i) const {
    size_t at = 0;
    for (int d = 0; d < rank; ++d) {
      at += i % sizes[d] * static_cast<size_t>(strides[k][d]);
      i /= sizes[d];
    }
    return at;
  }

 private:
  void append(int64_t size, const std::array<int64_t, N>& stride) {
    bool merge = rank > 0 && size * int64_t{sizes[rank > 0 ? rank - 1 : 0]} <= UINT32_MAX;
    for (int k = 0; k < N && merge; ++k)
      merge = stride[k] == strides[k][rank - 1] * int64_t{sizes[rank - 1]};
    if (merge) {
      sizes[rank - 1] *= static_cast<uint32_t>(size);
      return;
    }
    sizes[rank] = static_cast<uint32_t>(size);
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

template <class T>
struct BinaryForward : Each {
  const T *a, *b;
  Binary op;
  Walk<2> walk;
  T* y;
  __device__ void operator()(size_t i) const {
    y[i] = from_float<T>(
        binary_value(op, to_float(a[walk.index(0, i)]), to_float(b[walk.index(1, i)])));
  }
};

template <class T>
struct BinaryBackward : Each {
  const T *dy, *a, *b;
  Binary op;
  bool first;
  Walk<2> walk;
  Out d;
  __device__ void operator()(size_t i) const {
    const float left = to_float(a[walk.index(0, i)]), right = to_float(b[walk.index(1, i)]);
    d.write(i, to_float(dy[i]) * binary_partial(op, first, left, right));
  }
};

template <class T>
struct WhereForward : Each {
  const int32_t* condition;
  const T *a, *b;
  Walk<3> walk;
  T* y;
  __device__ void operator()(size_t i) const {
    y[i] = condition[walk.index(0, i)] ? a[walk.index(1, i)] : b[walk.index(2, i)];
  }
};

template <class T>
struct WhereBackward : Each {
  const T* dy;
  const int32_t* condition;
  bool first;
  Walk<1> walk;
  Out d;
  __device__ void operator()(size_t i) const {
    d.write(i, (condition[walk.index(0, i)] != 0) == first ? to_float(dy[i]) : 0);
  }
};

template <class T>
struct AddTo : Each {
  const T* x;
  Out d;
  __device__ void operator()(size_t i) const { d.write(i, to_float(x[i])); }
};

void add_to(const Tensor& x, const Destination& d) {
  dispatch("binary", x.dtype(), [&](auto type) {
    using T = decltype(type);
    each(x.numel(), AddTo<T>{{}, in<T>(x), d});
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

}  // namespace

void binary_forward(const Tensor& a, const Tensor& b, Binary op, const Tensor& y) {
  dispatch("binary", a.dtype(), [&](auto type) {
    using T = decltype(type);
    const Walk<2> walk(y.shape(), {&a.shape(), &b.shape()});
    each(y.numel(), BinaryForward<T>{{}, in<T>(a), in<T>(b), op, walk, out<T>(y)});
  });
}

void binary_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Binary op, bool first,
                     const Destination& d) {
  if (op == Binary::add || (op == Binary::sub && first)) return sum_to(dy, dy.shape(), d);
  // dy stands in for an operand that this partial derivative does not read.
  const Tensor &left = a.defined() ? a : dy, &right = b.defined() ? b : dy;
  const Destination each_element = before_summing(dy, d);
  dispatch("binary", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const Walk<2> walk(dy.shape(), {&left.shape(), &right.shape()});
    each(dy.numel(), BinaryBackward<T>{
                         {}, in<T>(dy), in<T>(left), in<T>(right), op, first, walk, each_element});
  });
  if (d.tensor.numel() != dy.numel()) sum_to(each_element.tensor, dy.shape(), d);
}

void where_forward(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  const Walk<3> walk(y.shape(), {&condition.shape(), &a.shape(), &b.shape()});
  const auto run = [&](auto type) {
    using T = decltype(type);
    each(y.numel(),
         WhereForward<T>{{}, in<int32_t>(condition), in<T>(a), in<T>(b), walk, out<T>(y)});
  };
  if (a.dtype() == DType::i32) return run(int32_t{});
  dispatch("where", a.dtype(), run);
}

void where_backward(const Tensor& dy, const Tensor& condition, bool first, const Destination& d) {
  const Destination each_element = before_summing(dy, d);
  const Walk<1> walk(dy.shape(), {&condition.shape()});
  dispatch("where", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    each(dy.numel(),
         WhereBackward<T>{{}, in<T>(dy), in<int32_t>(condition), first, walk, each_element});
  });
  if (d.tensor.numel() != dy.numel()) sum_to(each_element.tensor, dy.shape(), d);
}

}  // namespace tapeformer::kernels::cuda
