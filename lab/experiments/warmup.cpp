// Post-LN needs a warm-up of the learning rate, Pre-LN does not.
#include <algorithm>
#include <numeric>

#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"

namespace tapeformer::lab {
namespace {

Table measure(const Laboratory& lab) {
  const int64_t layers = lab.size(12, 8), steps = lab.size(300, 120);
  struct Setting {
    std::string placement;
    int64_t warmup;
    double lr;
    uint64_t seed;
  };
  std::vector<Setting> settings;
  for (const uint64_t seed : lab.seeds())
    for (const double lr : {5e-4, 1e-3})
      for (const std::string placement : {"post", "pre"})
        for (const int64_t warmup : {int64_t{0}, steps / 3})
          settings.push_back({placement, warmup, lr, seed});
  std::vector<Outcome> outcomes(settings.size());
  lab.for_each(settings.size(), [&](int64_t i) {
    const Setting& s = settings[i];
    outcomes[i] = lab.train_on_text({.model = lab.reference(layers, "layernorm", s.placement),
                                     .steps = steps,
                                     .warmup = s.warmup,
                                     .lr = s.lr,
                                     .seed = s.seed,
                                     .validation_batches = 20});
    lab.log("warmup: " + s.placement + ", warm-up " + std::to_string(s.warmup));
  });
  Table table({"placement", "warmup", "lr", "seed", "loss", "stuck", "diverged"});
  for (size_t i = 0; i < settings.size(); ++i) {
    const Setting& s = settings[i];
    table.add({s.placement, s.warmup > 0 ? "yes" : "no", s.lr, double(s.seed),
               outcomes[i].validation_loss, double(outcomes[i].stuck),
               double(outcomes[i].diverged)});
  }
  return table;
}

Judgement judge(const Table& table) {
  // Each at its better rate, seed by seed.
  const auto best = [&](const char* placement, const char* warmup) {
    const Table runs = table.where("placement", placement).where("warmup", warmup);
    std::vector<double> result;
    for (const Cell& seed : runs.distinct("seed"))
      result.push_back(std::ranges::min(losses(runs.where("seed", seed))));
    return result;
  };
  const auto post = difference(best("post", "no"), best("post", "yes"));
  const auto pre = difference(best("pre", "no"), best("pre", "yes"));
  Judgement result{judge_differences(difference(post, pre), 0.1), {}};
  for (const char* placement : {"post", "pre"})
    for (const char* warmup : {"no", "yes"}) {
      const Table runs = table.where("placement", placement).where("warmup", warmup);
      const std::string name =
          placement + std::string(*warmup == 'n' ? ", no warm-up: " : ", warm-up: ");
      const std::string of_runs = " of " + std::to_string(runs.rows().size()) + " runs";
      result.measured.push_back({name + "loss at the better rate", best(placement, warmup)});
      for (const char* end : {"stuck", "diverged"}) {
        const auto ended_so = runs.numbers(end);
        result.measured.push_back(
            {name + end + of_runs, {std::accumulate(ended_so.begin(), ended_so.end(), 0.0)}});
      }
    }
  return result;
}

Figure draw(const Table& table) {
  Figure figure{.title = "Loss at the end, with and without warm-up"};
  Panel panel{.x_label = "peak learning rate", .y_label = "nats per character", .height = 260};
  for (const std::string placement : {"post", "pre"}) {
    for (const std::string warmup : {"no", "yes"}) {
      Line line{.label = placement + (warmup == "yes" ? ", warm-up" : ""), .markers = true};
      const Table runs = table.where("placement", placement).where("warmup", warmup);
      for (const Cell& lr : table.distinct("lr")) {
        line.x.push_back(std::get<double>(lr));
        line.y.push_back(spread(runs.where("lr", lr).numbers("loss")).mean);
      }
      panel.lines.push_back(line);
    }
  }
  figure.add(panel);
  return figure;
}

}  // namespace

Experiment warmup() {
  return {
      .name = "warmup",
      .claim = "Post-LN needs a warm-up of the learning rate, Pre-LN does not.",
      .source = "Xiong et al. 2020, section 3 (arXiv 2002.04745)",
      .literature =
          "True: on IWSLT14 Post-LN without warm-up reaches 8.45 BLEU, with it 34 (Xiong et al. "
          "2020, arXiv 2002.04745).",
      .expected = Verdict::holds,
      .method =
          "12 layers (quick: 8), 300 steps (quick: 120) of Adam on 16 windows, constant rates of "
          "5e-4 and 1e-3, with and without a linear rise over the first third. Stuck is a run "
          "whose last tenth of losses lies no more than 0.1 nats below the entropy of the "
          "characters' frequencies.",
      .rule =
          "Each placement at the better of the two rates: holds when in every seed Post-LN gains "
          "more than 0.1 nats more from the warm-up than Pre-LN does; reversed when Pre-LN always "
          "does; does not hold when the gains always lie within 0.1 of each other.",
      .measure = measure,
      .judge = judge,
      .draw = draw};
}

}  // namespace tapeformer::lab
