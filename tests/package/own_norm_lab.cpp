// The norm lab of somebody else's program: all that norm_lab can do, with two norms more.
#include "lab/main.h"
#include "layers/batch_norms.h"

using namespace tapeformer;

// x less its mean over the times of its sample. It sees what comes later, and says so.
struct TimeCentred : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return x - mean(x, 1, true); }
  Mixes mixes(bool) const override { return Mixes::time; }
};

int main(int argc, char** argv) {
  register_norm("time-centred", [](int64_t) { return std::make_unique<TimeCentred>(); });
  register_norm("powernorm-short", [](int64_t channels) {
    auto norm = std::make_unique<PowerNorm>(channels);
    norm->warm_up = 50;  // steps; alpha and groups likewise
    return norm;
  });
  return lab::norm_lab_main(argc, argv);
}
