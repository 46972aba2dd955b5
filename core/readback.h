// Reading what a device computes without stopping it.
#pragma once

#include <memory>

#include "core/tensor.h"

namespace tapeformer {

namespace cuda {
struct Download;
}

/// A copy of a tensor on its way to the host. It comes after the work that the device had by then,
/// and waits for nothing that it gets later.
class Readback {
 public:
  Readback() = default;
  /// Starts the copy. x may be freed or overwritten at once.
  explicit Readback(const Tensor& x);
  /// The copy, when it is here.
  const Tensor& wait();

 private:
  struct Drop {
    void operator()(cuda::Download* download) const;
  };
  Tensor here_;
  std::unique_ptr<cuda::Download, Drop> download_;  // null: here_ has it
};

}  // namespace tapeformer
