// Element-wise kernels of several tensors, under NumPy's broadcasting, and their gradients, which
// are summed over the dimensions along which an operand was repeated.
#include "core/cpu/broadcast.h"

#include <cmath>

#include "core/cpu/sums.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

namespace {

// Each operation with its partial derivatives, by a (first) and by b, where those are no constants.
struct Add {
  template <class T>
  static T value(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  static T value(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  static T value(T a, T b) {
    return a * b;
  }
  template <bool first, class T>
  static T partial(T a, T b) {
    return first ? b : a;
  }
};
struct Div {
  template <class T>
  static T value(T a, T b) {
    return a / b;
  }
  template <bool first, class T>
  static T partial(T a, T b) {
    return first ? T(1) / b : -(a / b) / b;  // b * b could leave the range of T
  }
};
// d a^b = b a^(b-1) da + a^b log(a) db. Where a factor of 0 meets an infinite one, 0 is the limit.
struct Pow {
  template <class T>
  static T value(T a, T b) {
    return std::pow(a, b);
  }
  template <bool first, class T>
  static T partial(T a, T b) {
    if (first) return b == T(0) ? T(0) : b * std::pow(a, b - T(1));
    return a == T(0) && b >= T(0) ? T(0) : std::pow(a, b) * std::log(a);
  }
};

template <class F>
void dispatch_product(Binary op, F&& f) {
  if (op == Binary::mul) return f(Mul{});
  if (op == Binary::div) return f(Div{});
  f(Pow{});
}
template <class F>
void dispatch_binary(Binary op, F&& f) {
  if (op == Binary::add) return f(Add{});
  if (op == Binary::sub) return f(Sub{});
  dispatch_product(op, f);
}

int64_t cost_of(Binary op) { return op == Binary::pow ? 16 : 1; }

// d (+)= scale * x, summed over the dimensions along which d's shape was repeated to give x's.
void sum_to(const Tensor& x, double scale, const Destination& d) {
  // Merged, the dimensions alternate between kept ones (stride not 0) and repeated ones.
  const Broadcast<1> walk(x.shape(), {&d.tensor.shape()});
  int repeated = 0;
  for (int i = 0; i < walk.rank; ++i) repeated += walk.strides[0][i] == 0 && walk.sizes[i] != 1;
  if (repeated == 0) return affine(x, scale, 0, d);
  Tensor current = x.detach();
  int64_t outer = x.numel(), inner = 1;
  if (outer == 0) {
    if (!d.accumulate) fill(d.tensor, 0);
    return;
  }
  for (int i = 0; i < walk.rank; ++i) {  // innermost first
    const int64_t n = walk.sizes[i];
    outer /= n;
    if (walk.strides[0][i] != 0 || n == 1) {
      inner *= n;
      continue;
    }
    const bool last = --repeated == 0;
    const Destination next = last ? d : Destination{Tensor::empty({outer, inner}, wide(x.dtype()))};
    sum_forward(current.view({outer, n, inner}), 1, last ? scale : 1, next);
    current = next.tensor.detach();
  }
}

// The gradient of an operand that was repeated along one group of dimensions, [outer, n, inner],
// while the other operand was not: one pass, without a temporary. False when that is not the case.
template <class T, class Op, bool first>
bool sum_partial(const Tensor& dy, const Tensor& target, const Tensor& other,
                 const Destination& d) {
  using W = Wide<T>;
  const Broadcast<1> walk(dy.shape(), {&d.tensor.shape()});
  int repeated = -1;
  for (int i = 0; i < walk.rank; ++i)
    if (walk.strides[0][i] == 0) {
      if (repeated >= 0) return false;
      repeated = i;
    }
  if (repeated < 0 || other.numel() != dy.numel() || dy.numel() == 0) return false;
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < walk.rank; ++i)
    if (i != repeated) (i < repeated ? inner : outer) *= walk.sizes[i];
  const T *pdy = dy.data<T>(), *pt = target.data<T>(), *po = other.data<T>();
  sum_around<W>(outer, walk.sizes[repeated], inner, 1, d, [=](int64_t i, int64_t k) {
    const W own = pt[k], theirs = po[i];
    if constexpr (first) return pdy[i] * Op::template partial<first>(own, theirs);
    return pdy[i] * Op::template partial<first>(theirs, own);
  });
  return true;
}

template <class T, class Op, bool first>
void gradient_of(const Tensor& dy, const Tensor& a, const Tensor& b, int64_t cost,
                 const Destination& d) {
  using W = Wide<T>;
  const bool repeated = d.tensor.numel() != dy.numel();
  if (repeated && sum_partial<T, Op, first>(dy, first ? a : b, first ? b : a, d)) return;
  const T *pdy = dy.data<T>(), *pa = a.data<T>(), *pb = b.data<T>();
  const auto partial = [=](int64_t i, int64_t ia, int64_t ib) {
    return pdy[i] * Op::template partial<first>(W(pa[ia]), W(pb[ib]));
  };
  if (!repeated) {
    // d may be a reshaping of dy's shape with other sizes of 1.
    const Destination flat{d.tensor.view(dy.shape()), d.accumulate};
    return assign_broadcast<T>(flat, cost, a.shape(), b.shape(), partial);
  }
  const Tensor each = Tensor::empty(dy.shape(), dtype_of<W>);
  assign_broadcast<W>({each}, cost, a.shape(), b.shape(), partial);
  sum_to(each, 1, d);
}

}  // namespace

void binary_forward(const Tensor& a, const Tensor& b, Binary op, const Tensor& y) {
  dispatch_floating("binary_forward", a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const T *pa = a.data<T>(), *pb = b.data<T>();
    dispatch_binary(op, [&](auto operation) {
      assign_broadcast<T>(
          {y}, cost_of(op), a.shape(), b.shape(),
          [=](int64_t, int64_t ia, int64_t ib) { return operation.value(W(pa[ia]), W(pb[ib])); });
    });
  });
}

void binary_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Binary op, bool first,
                     const Destination& d) {
  if (op == Binary::add || op == Binary::sub)
    return sum_to(dy, op == Binary::sub && !first ? -1 : 1, d);
  // dy stands in for an operand that this partial derivative does not read.
  const Tensor &left = a.defined() ? a : dy, &right = b.defined() ? b : dy;
  dispatch_floating("binary_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    dispatch_product(op, [&](auto operation) {
      using Op = decltype(operation);
      if (first)
        gradient_of<T, Op, true>(dy, left, right, cost_of(op), d);
      else
        gradient_of<T, Op, false>(dy, left, right, cost_of(op), d);
    });
  });
}

void where_forward(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  dispatch_number("where", a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int32_t* pc = condition.data<int32_t>();
    const T *pa = a.data<T>(), *pb = b.data<T>();
    T* py = y.data<T>();
    const Broadcast<3> walk(y.shape(), {&condition.shape(), &a.shape(), &b.shape()});
    const int64_t sc = walk.strides[0][0], sa = walk.strides[1][0], sb = walk.strides[2][0];
    parallel_pieces(y.numel(), piece, 1, [&](int64_t begin, int64_t end) {
      walk.for_each_run(begin, end, [&](int64_t at, int64_t count, const auto& offsets) {
        const auto [ic, ia, ib] = offsets;
        for (int64_t j = 0; j < count; ++j)
          py[at + j] = pc[ic + j * sc] ? pa[ia + j * sa] : pb[ib + j * sb];
      });
    });
  });
}

void where_backward(const Tensor& dy, const Tensor& condition, bool first, const Destination& d) {
  dispatch_floating("where", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* pdy = dy.data<T>();
    const int32_t* pc = condition.data<int32_t>();
    const auto chosen = [=](int64_t i, int64_t, int64_t ic) {
      return (pc[ic] != 0) == first ? Wide<T>(pdy[i]) : Wide<T>(0);
    };
    if (d.tensor.numel() == dy.numel()) {
      const Destination flat{d.tensor.view(dy.shape()), d.accumulate};
      return assign_broadcast<T>(flat, 1, dy.shape(), condition.shape(), chosen);
    }
    const Tensor each = Tensor::empty(dy.shape(), dtype_of<Wide<T>>);
    assign_broadcast<Wide<T>>({each}, 1, dy.shape(), condition.shape(), chosen);
    sum_to(each, 1, d);
  });
}

}  // namespace tapeformer::kernels::cpu
