#include "core/tensor.h"

#include <cstring>

#include "core/cuda/backend.h"
#include "core/kernels.h"

namespace tapeformer {

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  int64_t bytes = 0;
  check(!__builtin_mul_overflow(shape.numel(), static_cast<int64_t>(size_of(dtype)), &bytes),
        "tensor: shape ", shape, " of ", dtype, " exceeds the address space");
  auto* body = new Body;
  Tensor result(body);
  body->storage = Storage::allocate(bytes, device);
  body->shape = shape;
  body->dtype = dtype;
  return result;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  result.fill(value);
  return result;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}

template <class T>
Tensor Tensor::from(const std::vector<T>& values, const Shape& shape) {
  check(static_cast<int64_t>(values.size()) == shape.numel(), "tensor: ", values.size(),
        " values do not fill shape ", shape);
  Tensor result = empty(shape, dtype_of<T>);
  if (!values.empty()) std::memcpy(result.raw(), values.data(), values.size() * sizeof(T));
  return result;
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor here = to(Device::cpu);
  const T* begin = here.data<T>();
  return std::vector<T>(begin, begin + numel());
}

#define TAPEFORMER_INSTANTIATE(T)                                       \
  template Tensor Tensor::from<T>(const std::vector<T>&, const Shape&); \
  template std::vector<T> Tensor::to_vector<T>() const;
TAPEFORMER_INSTANTIATE(float)
TAPEFORMER_INSTANTIATE(double)
TAPEFORMER_INSTANTIATE(bf16)
TAPEFORMER_INSTANTIATE(f16)
TAPEFORMER_INSTANTIATE(int32_t)
#undef TAPEFORMER_INSTANTIATE

double Tensor::item() const {
  check(numel() == 1, "item: needs a tensor with one element, got shape ", shape());
  if (device() != Device::cpu) return to(Device::cpu).item();
  if (dtype() == DType::i32) return *data<int32_t>();
  double value = 0;
  dispatch_floating("item", dtype(), [&](auto type) { value = *data<decltype(type)>(); });
  return value;
}

Shape infer_shape(const char* operation, int64_t numel, std::initializer_list<int64_t> sizes) {
  int64_t known = 1;
  int unknown = 0;
  for (int64_t size : sizes) {
    unknown += size == -1;
    if (size != -1) known *= size;
  }
  check(unknown <= 1, operation, ": only one size may be -1");
  check(unknown == 0 || (known > 0 && numel % known == 0), operation, ": ", numel,
        " elements cannot be divided among ", std::vector<int64_t>(sizes));
  Shape shape;
  for (int64_t size : sizes) shape.push_back(size == -1 ? numel / known : size);
  check(shape.numel() == numel, operation, ": ", numel, " elements do not fill shape ", shape);
  return shape;
}

Tensor Tensor::view(const Shape& shape) const {
  check(shape.numel() == numel(), "view: shape ", this->shape(), " has other elements than ",
        shape);
  Tensor result = detach();
  check(!body().gradient,
        "view: would lose the gradient; use reshape(x, shape), or detach() if that is meant");
  result.body().shape = shape;
  return result;
}

Tensor Tensor::view(std::initializer_list<int64_t> sizes) const {
  return view(infer_shape("view", numel(), sizes));
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  check(rank() > 0 && 0 <= begin && begin <= end && end <= dim(0), "rows: [", begin, ", ", end,
        ") is no range of the first dimension of ", shape());
  check(!body().gradient,
        "rows: would lose the gradient; use slice(x, 0, begin, end), or detach() if that is meant");
  Tensor result = detach();
  if (dim(0) > 0) result.body().offset += begin * (numel() / dim(0));
  result.body().shape = shape().with(0, end - begin);
  return result;
}

Tensor Tensor::detach() const {
  const Body& source = body();
  auto* view = new Body;
  Tensor result(view);
  view->storage = source.storage;
  view->offset = source.offset;
  view->shape = source.shape;
  view->dtype = source.dtype;
  return result;
}

void Tensor::fill(double value) const { kernels::fill(*this, value); }

void Tensor::copy_from(const Tensor& source) const {
  check(source.shape() == shape(), "copy_from: shapes differ: ", shape(), " from ", source.shape());
  if (source.device() == device()) return kernels::copy(source, *this);
  if (numel() == 0) return;
  if constexpr (knows_cuda) {
    if (source.dtype() != dtype()) {  // converted on the host, which has every dtype
      if (device() == Device::cpu) return kernels::copy(source.to(Device::cpu), *this);
      const Tensor converted = empty(shape(), dtype());
      kernels::copy(source, converted);
      return copy_from(converted);
    }
    if (device() == Device::cuda) return cuda::copy_to_device(raw(), source.raw(), bytes());
    cuda::copy_to_host(raw(), source.raw(), bytes());
  }
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return detach();
  Tensor result = empty(shape(), dtype(), target);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty_like();
  kernels::copy(*this, result);
  return result;
}

void Tensor::rebase(Storage storage, int64_t offset) const {
  body().storage = std::move(storage);
  body().offset = offset;
}

void Tensor::become(const Tensor& other) const {
  check(other.shape() == shape(), "become: shapes differ: ", shape(), " and ", other.shape());
  rebase(other.storage(), other.body().offset);
  body().dtype = other.dtype();
}

void Tensor::undefined() { fail("an undefined tensor was used where a value is needed"); }

void Tensor::wrong_type(DType asked) const {
  fail("data: a tensor of ", dtype(), " was read as ", asked);
}

}  // namespace tapeformer
