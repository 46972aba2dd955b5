// An intrusive counted pointer: one word, no control block. T has a member
// `std::atomic<int> references{0}` and a static function `release(T*)` that disposes of it.
#pragma once

#include <atomic>
#include <utility>

namespace tapeformer {

template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) { retain(); }
  Ref(const Ref& other) : object_(other.object_) { retain(); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && object_->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
      T::release(object_);
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref&, const Ref&) = default;

  /// True when this is the only reference.
  bool unique() const {
    return object_ && object_->references.load(std::memory_order_acquire) == 1;
  }

 private:
  void retain() {
    if (object_) object_->references.fetch_add(1, std::memory_order_relaxed);
  }
  T* object_ = nullptr;
};

}  // namespace tapeformer
