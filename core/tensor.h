// A tensor: a cheap handle on a shared body (storage, offset, shape, dtype). Always contiguous and
// row-major: what rearranges, copies. Copying a handle copies no data, and all handles of a body
// see a change of its storage, which is how parameters move into one flat buffer.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/ref.h"
#include "core/shape.h"
#include "core/storage.h"

namespace tapeformer {

/// What autograd hangs on a tensor. Core carries it and looks no further.
struct GradientState {
  std::atomic<int> references{0};
  virtual ~GradientState() = default;
  static void release(GradientState* state) { delete state; }
};

class Tensor {
 public:
  /// An undefined tensor: "not given", "not needed".
  Tensor() = default;

  // ---- Making one. Contents of `empty` are arbitrary.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu);
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32,
                     Device device = Device::cpu);
  /// A new tensor with the values in row-major order. Throws when their number does not fit.
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values) {
    return from(values, Shape{static_cast<int64_t>(values.size())});
  }
  /// Uninitialised, with the dtype and device of this one.
  Tensor empty_like() const { return empty(shape(), dtype(), device()); }
  Tensor empty_like(const Shape& shape) const { return empty(shape, dtype(), device()); }

  // ---- What it is.
  bool defined() const { return static_cast<bool>(body_); }
  const Shape& shape() const { return body().shape; }
  int rank() const { return shape().rank(); }
  int64_t dim(int i) const { return shape()[i]; }
  int64_t numel() const { return shape().numel(); }
  DType dtype() const { return body().dtype; }
  Device device() const { return body().storage.device(); }
  size_t bytes() const { return numel() * size_of(dtype()); }

  // ---- Its elements. A tensor is a handle, so const tensors give mutable elements.
  /// Throws unless T is the element type.
  template <class T>
  T* data() const {
    if (dtype() != dtype_of<T>) [[unlikely]]
      wrong_type(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  void* raw() const {
    return static_cast<char*>(body().storage.data()) + body().offset * size_of(body().dtype);
  }
  /// All elements, copied to the host. Throws unless T is the element type.
  template <class T>
  std::vector<T> to_vector() const;
  /// The only element of a tensor that has one, of any type.
  double item() const;

  // ---- Views on the same memory. They have no gradient, so they refuse a tensor that has: use
  // reshape() and slice() of autograd/ops.h there, or detach() first.
  /// Same elements, other shape; one size may be -1 (worked out).
  Tensor view(const Shape& shape) const;
  Tensor view(std::initializer_list<int64_t> sizes) const;
  /// Elements [begin, end) of the first dimension.
  Tensor rows(int64_t begin, int64_t end) const;
  /// The same memory as a tensor without gradient.
  Tensor detach() const;

  // ---- Changing in place. Never for a tensor that a tape has seen.
  void fill(double value) const;
  /// Copies the elements of a tensor of the same shape, from any device, converting the dtype.
  void copy_from(const Tensor& source) const;
  /// A copy of its own, without gradient.
  Tensor clone() const;
  /// A copy on the device, without gradient; the same memory when it lies there already.
  Tensor to(Device device) const;

  // ---- For autograd and for Parameters.
  GradientState* gradient_state() const { return body_ ? body_->gradient.get() : nullptr; }
  void set_gradient_state(Ref<GradientState> state) const { body().gradient = std::move(state); }
  /// True when nobody else refers to this body or its memory.
  bool unique() const { return body_.unique() && body_->storage.unique(); }
  const Storage& storage() const { return body().storage; }
  /// Moves the tensor to `offset` (elements) of another storage, for all handles. Copies nothing.
  void rebase(Storage storage, int64_t offset) const;
  /// Takes over memory, dtype and device of a tensor of the same shape, for all handles.
  void become(const Tensor& other) const;
  /// True when both are handles of one body.
  bool is(const Tensor& other) const { return body_ == other.body_; }

 private:
  struct Body {
    std::atomic<int> references{0};
    Storage storage;
    int64_t offset = 0;  // elements
    Shape shape;
    DType dtype = DType::f32;
    Ref<GradientState> gradient;
    static void release(Body* body) { delete body; }
  };
  explicit Tensor(Body* body) : body_(body) {}
  Body& body() const {
    if (!body_) [[unlikely]]
      undefined();
    return *body_;
  }
  [[noreturn]] static void undefined();
  [[noreturn]] void wrong_type(DType asked) const;

  Ref<Body> body_;
};

/// Resolves one size of -1 in `sizes` so that the product is `numel`. Throws when it cannot be.
Shape infer_shape(const char* operation, int64_t numel, std::initializer_list<int64_t> sizes);

}  // namespace tapeformer
