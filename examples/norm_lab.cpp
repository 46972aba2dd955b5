// The norm lab: claims about norms and their placement, each turned into an experiment.
//
//   norm_lab --list
//   norm_lab warmup --quick
//   norm_lab --grid norms=layernorm,rmsnorm,placements=pre,post,depth=4,12
//
// A program of your own that registers a norm or an experiment first has it in all of these:
//   register_norm("mine", [](int64_t channels) { return std::make_unique<MyNorm>(channels); });
#include "lab/main.h"

int main(int argc, char** argv) { return tapeformer::lab::norm_lab_main(argc, argv); }
