#include "core/readback.h"

#include "core/cuda/backend.h"

namespace tapeformer {

Readback::Readback(const Tensor& x) {
  if (x.device() == Device::cpu) {
    here_ = x.clone();
    return;
  }
  here_ = Tensor::empty(x.shape(), x.dtype());
  if constexpr (knows_cuda) download_.reset(cuda::start_download(x.raw(), x.bytes()));
}

const Tensor& Readback::wait() {
  if constexpr (knows_cuda)
    if (download_) {
      cuda::finish_download(download_.get(), here_.raw());
      download_.reset();
    }
  return here_;
}

void Readback::Drop::operator()(cuda::Download* download) const {
  if constexpr (knows_cuda) cuda::drop_download(download);
}

}  // namespace tapeformer
