// The text of --grid.
#include "lab/grid.h"
#include "layers/norm.h"
#include "layers/residual.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;

// Stand in for the layers, of which a grid needs the names alone.
NormFactory tapeformer::find_norm(const std::string& name) {
  check(name == "rmsnorm" || name == "dyt", "no norm");
  return {};
}
Placement tapeformer::find_placement(const std::string& name) {
  check(name == "pre" || name == "post", "no placement");
  return {};
}

const std::vector<std::string> seeds = {"norms=rmsnorm,dyt,placements=pre,post,depth=4,12",
                                        "lr=1e-3,0.5,warmup=0,10,batch=1",
                                        "clip=0,1,steps=300,depth=1"};

FUZZ_TARGET(input) {
  only_errors([&] {
    const lab::Grid grid = lab::parse_grid(std::string(input));
    for (const auto* axis : {&grid.depth, &grid.batch, &grid.steps})
      for (const int64_t value : *axis) promise(value > 0, "sizes are positive");
    for (const double lr : grid.lr) promise(lr >= 0, "rates are not negative");
    promise(!grid.norms.empty() && !grid.placements.empty(), "every axis has a value");
  });
}
