// Shallow models do not care where the norm stands; deep ones need Pre-LN.
#include <algorithm>

#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"

namespace tapeformer::lab {
namespace {

Table measure(const Laboratory& lab) {
  const int64_t steps = lab.size(200, 80);
  const std::vector<int64_t> depths =
      lab.quick() ? std::vector<int64_t>{2, 8} : std::vector<int64_t>{2, 6, 16};
  std::vector<Run> runs;
  for (const uint64_t seed : lab.seeds())
    for (const int64_t depth : depths)
      for (const std::string placement : {"post", "pre"})
        for (const int64_t warmup : {int64_t{0}, steps / 3})
          for (const double lr : {5e-4, 2e-3})
            runs.push_back({{double(depth), placement, warmup > 0 ? "yes" : "no", lr, double(seed)},
                            {.model = lab.reference(depth, "layernorm", placement),
                             .batch = 8,
                             .steps = steps,
                             .warmup = warmup,
                             .lr = lr,
                             .seed = seed,
                             .validation_batches = 40}});
  return train_all(lab, {"depth", "placement", "warm-up", "lr", "seed"}, runs);
}

// The best of the settings among the runs, for each seed.
std::vector<double> best(const Table& runs) {
  std::vector<double> result;
  for (const Cell& seed : runs.distinct("seed"))
    result.push_back(std::ranges::min(losses(runs.where("seed", seed))));
  return result;
}

Judgement judge(const Table& table) {
  const auto depths = table.distinct("depth");
  const auto loss = [&](const Cell& depth, const char* placement) {
    return best(table.where("depth", depth).where("placement", placement));
  };
  const Cell shallow = depths.front(), deep = depths.back();
  const Verdict at_shallow =
      judge_differences(difference(loss(shallow, "post"), loss(shallow, "pre")), 0.05);
  const Verdict at_deep =
      judge_differences(difference(loss(deep, "post"), loss(deep, "pre")), 0.05);
  // Shallow: the claim is that there is no difference, whatever its sign.
  const Verdict no_difference = at_shallow == Verdict::does_not_hold   ? Verdict::holds
                                : at_shallow == Verdict::not_decidable ? Verdict::not_decidable
                                                                       : Verdict::does_not_hold;
  Judgement result{both(no_difference, at_deep), {}};
  for (const Cell& depth : depths)
    for (const char* placement : {"post", "pre"})
      result.measured.push_back({std::string(placement) + ", " + to_text(depth) +
                                     " layers: loss of the best setting, nats",
                                 loss(depth, placement)});
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Depth, placement and warm-up: the better of two rates"};
  Panel panel{.title = "Loss on held-out text",
              .x_label = "layers",
              .y_label = "nats per character",
              .height = 240};
  Panel stuck{.title = "Runs that stayed at the frequencies of the characters, or diverged",
              .x_label = "layers",
              .y_label = "share of runs",
              .height = 120};
  for (const std::string placement : {"post", "pre"}) {
    for (const std::string warmup : {"no", "yes"}) {
      Line line{.label = placement + (warmup == "yes" ? ", warm-up" : ""), .markers = true};
      Line share = line;
      for (const Cell& depth : table.distinct("depth")) {
        const Table runs =
            table.where("depth", depth).where("placement", placement).where("warm-up", warmup);
        line.x.push_back(std::get<double>(depth));
        line.y.push_back(spread(best(runs)).mean);
        share.x.push_back(std::get<double>(depth));
        share.y.push_back(spread(runs.numbers("stuck")).mean +
                          spread(runs.numbers("diverged")).mean);
      }
      panel.lines.push_back(line);
      stuck.lines.push_back(share);
    }
  }
  figure.add(panel);
  figure.add(stuck);
  return figure;
}

}  // namespace

Experiment depth() {
  return {
      .name = "depth",
      .claim = "Shallow models: no difference between placements. Deep ones: use Pre-LN.",
      .source = "a rule of thumb, from Xiong et al. 2020 and Wang et al. 2019",
      .literature =
          "Stability: yes, Post-LN is hard to train deep (Wang et al. 2019, arXiv 1906.01787; "
          "Xiong et al. 2020, arXiv 2002.04745). But where it trains, Post-LN often ends better "
          "(Nguyen & Salazar 2019, arXiv 1910.05895; Xie et al. 2023, arXiv 2304.14802).",
      .expected = Verdict::holds,
      .method =
          "2, 6 and 16 layers (quick: 2 and 8), post and pre, with a linear warm-up over a third "
          "of the 200 steps (quick: 80; 8 rows each) and without, rates of 5e-4 and 2e-3; the "
          "best setting of each depth and placement.",
      .rule =
          "Holds when in every seed the best losses of the shallowest models lie within 0.05 "
          "nats, and in the deepest Post-LN's is more than 0.05 above Pre-LN's. A run that "
          "diverged counts as infinitely bad.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
