// How the residual stream grows with depth: by a square root with a norm in each branch, and
// exponentially without.
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "train/profile.h"

namespace tapeformer::lab {

namespace {

struct Setting {
  std::string name, norm, placement;
};
const Setting settings[] = {{"pre", "layernorm", "pre"},
                            {"without norm", "none", "pre"},
                            {"post", "layernorm", "post"},
                            {"without residual", "layernorm", "no-residual"}};

// The weights of the first blocks are the same in a model of any depth, so what a deep one has
// after block l is what one of l layers ends with.
Table measure(const Laboratory& lab) {
  const int64_t layers = lab.size(48, 24);
  const std::vector<uint64_t> seeds = lab.seeds();
  std::vector<std::vector<double>> rms(std::size(settings) * seeds.size());
  lab.for_each(rms.size(), [&](int64_t i) {
    const auto& [name, norm, placement] = settings[i / seeds.size()];
    const uint64_t seed = seeds[i % seeds.size()];
    GPT model(lab.reference(layers, norm, placement), seed);
    rms[i] = stream_rms(model, lab.text(16, 64, seed).training_batch(0).inputs);
    lab.log("activation-growth: " + name);
  });
  Table table({"setting", "seed", "block", "rms"});
  for (size_t i = 0; i < rms.size(); ++i)
    for (size_t block = 0; block < rms[i].size(); ++block)
      table.add({settings[i / seeds.size()].name, double(seeds[i % seeds.size()]), double(block),
                 rms[i][block]});
  return table;
}

// One slope for each seed, of ln RMS against ln block or against block, from block 6 on.
std::vector<double> slopes(const Table& table, const char* setting, bool logarithmic) {
  std::vector<double> result;
  const Table runs = table.where("setting", setting);
  for (const Cell& seed : runs.distinct("seed")) {
    const auto blocks = runs.where("seed", seed).numbers("block");
    const auto rms = runs.where("seed", seed).numbers("rms");
    std::vector<double> x, y;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] < 6) continue;
      x.push_back(logarithmic ? std::log(blocks[i]) : blocks[i]);
      y.push_back(std::log(rms[i]));
    }
    result.push_back(slope(x, y));
  }
  return result;
}

Judgement judge(const Table& table) {
  constexpr double margin = 0.25;  // of the exponent
  const auto pre = slopes(table, "pre", true), none = slopes(table, "without norm", true);
  int linear = 0;
  bool finite = !pre.empty() && pre.size() == none.size();
  for (size_t i = 0; finite && i < pre.size(); ++i) {
    finite = std::isfinite(pre[i]) && std::isfinite(none[i]);
    linear += std::abs(pre[i] - 1) <= margin || std::abs(none[i] - 1) <= margin;
  }
  Judgement judgement;
  if (finite && linear == 0) judgement.verdict = Verdict::does_not_hold;
  if (finite && linear == static_cast<int>(pre.size())) judgement.verdict = Verdict::holds;
  auto factors = slopes(table, "without norm", false);
  for (double& factor : factors) factor = std::exp(factor);
  judgement.measured = {{"pre: exponent of the growth with depth", pre},
                        {"without norm: exponent of the growth with depth", none},
                        {"without norm: factor per block", factors}};
  for (const Setting& setting : settings)
    judgement.measured.push_back(
        {setting.name + ": RMS after 10 blocks",
         table.where("setting", setting.name).where("block", 10.0).numbers("rms")});
  return judgement;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Residual stream at initialisation"};
  Panel all{.title = "All", .y_label = "RMS", .y_scale = Scale::log10};
  Panel bounded{.title = "Those with a norm", .x_label = "blocks", .y_label = "RMS"};
  for (const Setting& setting : settings) {
    const Table rows = table.where("setting", setting.name);
    add_lines(all, setting.name, rows, "block", "rms");
    if (setting.norm != "none") add_lines(bounded, setting.name, rows, "block", "rms");
  }
  for (Line& line : bounded.lines) line.style += line.style > 0;  // the colours of the first panel
  figure.add(all);
  figure.add(bounded);
  return figure;
}

}  // namespace

Experiment activation_growth() {
  return {.name = "activation-growth",
          .claim = "Ten residual layers make activations ten times larger.",
          .source = "a common explanation of why deep models need norms",
          .literature =
              "A wrong law: with Pre-LN the variance grows by a constant with each layer, so the "
              "RMS by sqrt(L) (Xiong et al. 2020, lemma 2, arXiv 2002.04745); without a norm every "
              "branch grows with its input, so the stream is multiplied with each layer.",
          .expected = Verdict::does_not_hold,
          .method =
              "RMS of the residual stream after each block of models of 48 layers (quick: 24) at "
              "initialisation, Xavier weights, one batch of 16 windows of 64 characters: Pre-LN, "
              "the same without norm, Post-LN, and Post-LN without residual. The exponent p of RMS "
              "~ blocks^p is fitted to the logarithms from block 6 on.",
          .rule =
              "Ten layers, ten times: an exponent of 1. Holds when in every seed the exponent of "
              "Pre-LN or of no norm lies within 0.25 of 1, does not hold when in every seed "
              "neither does. An exponent that is not finite leaves it undecided.",
          .measure = measure,
          .judge = judge,
          .draw = draw};
}

}  // namespace tapeformer::lab
