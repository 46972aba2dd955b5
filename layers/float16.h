// float16 by emulation: layer norm and RMS norm with every intermediate rounded to half precision,
// to see an overflow happen, and the two remedies beside it.
//
// What there is to see, with C = 512 features. The largest half is 65,504, so a square overflows
// from |x| = 256 on, and the sum of 512 squares from an RMS of 11.3 on. The failure is silent: the
// variance is infinite, its inverse root is zero, and the output is zero (or the bias), not NaN.
// An epsilon of 1e-8 is zero in half precision: the smallest half is 2^-24, about 6e-8.
#pragma once

#include <string>
#include <vector>

#include "layers/norm.h"

namespace tapeformer {

enum class HalfRemedy {
  none,
  clamp,            ///< the input is cut to +-clamp first, which changes the function
  wide_statistics,  ///< f32 or wider inside; only input, parameters and output are halves
};

/// LayerNorm (centred) or RMSNorm in half precision, held in f32 tensors. Forward only.
struct HalfNorm : Norm {
  Tensor weight, bias;  // [C]; RMS norm has no bias
  double epsilon = 1e-5;
  /// Where the remedy cuts, sqrt(65504 / 2C): then C squares sum to at most half of the largest
  /// number, and rounding each partial sum can no more than double it (an addition of q rounds to
  /// s, or to at most s + 2q).
  double clamp;
  /// Of the last pass: values that became infinite, and that became zero without being it.
  int64_t overflows = 0, underflows = 0;

  HalfNorm(int64_t channels, bool centred, HalfRemedy remedy);
  Tensor forward(const Tensor& x, const NormContext& context) override;
  void visit(Visitor& visitor) override;

 private:
  bool centred_;
  HalfRemedy remedy_;
};

/// Makes layernorm-float16, layernorm-float16-clamp, layernorm-float16-f32stats, and the same three
/// of rmsnorm, available by name. Calling it again does nothing.
void register_float16_norms();
/// The names of the emulations of "layernorm" or "rmsnorm"; none for any other.
std::vector<std::string> float16_norms_of(const std::string& norm);

}  // namespace tapeformer
