// The verdicts of the lab's experiments on training, from tables made by hand, and what these
// experiments share.
#include <array>
#include <cmath>
#include <limits>

#include "lab/experiments/experiments.h"
#include "lab/experiments/training.h"
#include "tests/catch.h"
#include "tests/lab_verdicts.h"
#include "tests/temporary_folder.h"

namespace tapeformer::lab {
namespace {

void add(Table& table, const std::vector<Cell>& cells, const Two& first, const Two& second = {}) {
  for (const size_t seed : {0, 1}) {
    std::vector<Cell> row = cells;
    row.insert(row.end(), {double(seed + 1), first[seed], second[seed]});
    table.add(row);
  }
}

TEST_CASE("a_diverged_run_is_worse_than_any_other") {
  Table table({"seed", "loss"});
  table.add({1.0, 2.5});
  table.add({2.0, nan});
  CHECK(losses(table) == std::vector<double>{2.5, std::numeric_limits<double>::infinity()});
}

TEST_CASE("a_claim_of_two_parts_fails_with_either") {
  CHECK(both(holds, holds) == holds);
  CHECK(both(reversed, reversed) == reversed);
  CHECK(both(not_decidable, not_decidable) == not_decidable);
  CHECK(both(holds, does_not_hold) == does_not_hold);
  CHECK(both(reversed, holds) == does_not_hold);
  CHECK(both(not_decidable, does_not_hold) == does_not_hold);
  CHECK(both(holds, not_decidable) == not_decidable);
}

TEST_CASE("a_line_shows_means_and_single_seeds") {
  Table table({"batch", "seed", "loss"});
  for (const double seed : {1, 2})
    for (const double batch : {4, 8}) table.add({batch, seed, batch + 10 * seed});
  const Table doubled = with_log2(table, "batch");
  CHECK(doubled.numbers("log2") == std::vector<double>{2, 3, 2, 3});
  Panel panel;
  add_lines(panel, "a", doubled, "log2", "loss");
  add_lines(panel, "b", doubled, "log2", "loss");
  REQUIRE(panel.lines.size() == 6);
  CHECK(panel.lines[0].y == std::vector<double>{14, 18});
  CHECK(panel.lines[1].y == std::vector<double>{24, 28});
  CHECK(panel.lines[2].x == std::vector<double>{2, 3});
  CHECK(panel.lines[2].y == std::vector<double>{19, 23});
  CHECK((panel.lines[0].faint && panel.lines[1].faint && !panel.lines[2].faint));
  for (const size_t i : {0, 1, 2}) CHECK(panel.lines[i].style != panel.lines[i + 3].style);
}

TEST_CASE("runs_are_trained_and_named_by_their_cells") {
  const Laboratory lab({.quick = true, .seeds = 1});
  const auto run = [&](uint64_t seed, double lr) {
    return Run{{"layernorm", double(seed)},
               {.model = lab.reference(1, "layernorm", "pre"),
                .batch = 2,
                .steps = 10,
                .lr = lr,
                .seed = seed,
                .validation_batches = 1}};
  };
  const Table table = train_all(lab, {"norm", "seed"}, {run(1, 1e-3), run(2, 1e-3), run(3, 1e30)});
  CHECK(table.columns() ==
        std::vector<std::string>{"norm", "seed", "loss", "training", "stuck", "diverged"});
  CHECK(table.numbers("seed") == std::vector<double>{1, 2, 3});
  CHECK(table.numbers("diverged") == std::vector<double>{0, 0, 1});
  CHECK(table.numbers("loss")[0] > 0);
  CHECK(table.numbers("loss")[0] != table.numbers("loss")[1]);
  CHECK(std::isnan(table.numbers("loss")[2]));
}

// Training and evaluation losses with one row per batch; with 64 rows both norms are alike.
Table leak_table(const Two& layer_training, const Two& layer_loss, const Two& batch_training,
                 const Two& batch_loss) {
  Table table({"norm", "batch", "seed", "training", "loss"});
  add(table, {"layernorm", 1.0}, layer_training, layer_loss);
  add(table, {"layernorm", 64.0}, {2.1, 2.1}, {2.2, 2.2});
  add(table, {"batchnorm", 1.0}, batch_training, batch_loss);
  add(table, {"batchnorm", 64.0}, {2.1, 2.1}, {2.2, 2.2});
  return table;
}

TEST_CASE("the_leak_is_exploited_where_training_gains_and_evaluation_loses") {
  const Two training{2.3, 2.4}, loss{2.4, 2.5};
  const auto judged = [&](const Two& batch_training, const Two& batch_loss) {
    return verdict("leak-exploited", leak_table(training, loss, batch_training, batch_loss));
  };
  CHECK(judged({0.5, 0.6}, {5.0, 6.0}) == holds);
  CHECK(judged(training, loss) == does_not_hold);
  CHECK(judged({0.5, 0.6}, loss) == does_not_hold);  // better, not leaking
  CHECK(judged(training, {5.0, 6.0}) == does_not_hold);
  CHECK(judged({2.6, 2.7}, {2.2, 2.3}) == reversed);
  CHECK(judged({0.5, 2.4}, {5.0, 6.0}) == not_decidable);
  CHECK(judged({nan, nan}, {nan, nan}) == does_not_hold);
}

TEST_CASE("the_statistics_differ_where_running_ones_cost_more_than_layernorms_two_modes") {
  const auto judged = [&](const Two& running, const Two& batch) {
    Table table(
        {"norm", "batch", "seed", "position", "tid", "running", "of the batch", "recalibrated"});
    for (const double rows : {1, 16})
      for (const size_t seed : {0, 1}) {
        const bool small = rows == 1;
        for (const double position : {1, 2})
          table.add({"batchnorm", rows, double(seed), position, 0.1, small ? running[seed] : 2,
                     small ? batch[seed] : 2, 2.0});
        table.add({"layernorm", rows, double(seed), 1.0, 0.0, 2.0, 2.0, 2.0});
      }
    return verdict("statistics-gap", table);
  };
  CHECK(judged({2.1, 2.2}, {2.0, 2.0}) == holds);
  CHECK(judged({2.01, 2.0}, {2.0, 2.01}) == does_not_hold);
  CHECK(judged({2.0, 2.0}, {2.1, 2.2}) == reversed);
  CHECK(judged({2.1, 2.0}, {2.0, 2.0}) == not_decidable);
  CHECK(judged({nan, nan}, {2.0, 2.0}) == holds);
  CHECK(judged({nan, nan}, {nan, nan}) == not_decidable);
}

TEST_CASE("small_batches_hurt_where_the_gap_to_layernorm_is_larger_than_in_large_ones") {
  const auto judged = [&](const Two& small, const Two& large) {
    Table table({"norm", "batch", "seed", "loss", "unused"});
    add(table, {"layernorm", 4.0}, {2.6, 2.7});
    add(table, {"layernorm", 128.0}, {2.4, 2.5});
    add(table, {"batchnorm", 4.0}, small);
    add(table, {"batchnorm", 128.0}, large);
    return verdict("small-batches", table);
  };
  CHECK(judged({2.7, 2.8}, {2.4, 2.5}) == holds);
  CHECK(judged({2.7, 2.8}, {2.5, 2.6}) == does_not_hold);  // worse by the same
  CHECK(judged({2.6, 2.7}, {2.5, 2.6}) == reversed);
  CHECK(judged({2.7, 2.7}, {2.4, 2.5}) == not_decidable);
  CHECK(judged({nan, nan}, {2.4, 2.5}) == holds);
}

TEST_CASE("oscillation_and_steps_count_in_units_of_layernorms_growth") {
  const auto runs = [&](const Two& oscillation, const Two& steps, const Two& diverged) {
    Table table({"norm", "batch", "seed", "oscillation", "steps", "diverged"});
    const auto rows = [&](const char* norm, double batch, const Two& o, const Two& s,
                          const Two& d = {}) {
      for (const size_t i : {0, 1}) table.add({norm, batch, i + 1.0, o[i], s[i], d[i]});
    };
    for (const double batch : {8, 64}) {  // not looked at
      rows("layernorm", batch, {9, 9}, {9, 9});
      rows("batchnorm", batch, {1, 2}, {3, 6});
    }
    rows("layernorm", 16, {0.2, 0.2}, {120, 120});
    rows("layernorm", 32, {0.1, 0.1}, {100, 100});
    rows("batchnorm", 16, oscillation, steps, diverged);
    rows("batchnorm", 32, {0.1, 0.1}, {200, 200});
    return table;
  };
  const auto judged = [&](const Two& oscillation, const Two& steps, const Two& diverged = {}) {
    return verdict("batch-oscillation", runs(oscillation, steps, diverged));
  };
  CHECK(judged({0.3, 0.3}, {300, 320}) == holds);  // factors 1.5 and 1.25 ... 1.33 of LayerNorm's
  CHECK(judged({0.2, 0.2}, {240, 240}) == does_not_hold);
  CHECK(judged({0.3, 0.3}, {240, 240}) == does_not_hold);
  CHECK(judged({0.1, 0.1}, {150, 150}) == reversed);
  CHECK(judged({0.3, 0.3}, {300, 240}) == not_decidable);
  CHECK(judged({0.3, 0.3}, {300, nan}) == not_decidable);
  const double never = std::numeric_limits<double>::infinity();
  CHECK(judged({0.3, 0.3}, {300, never}) == not_decidable);
  CHECK(judged({0.3, 0.3}, {300, 320}, {0, 1}) == not_decidable);  // its numbers do not count
  const auto remark = [&](const Two& diverged) {
    return batch_oscillation().judge(runs({0.3, 0.3}, {300, 300}, diverged)).remark;
  };
  CHECK_THAT(remark({0, 0}), ContainsSubstring("steps: 0.50 (8 rows), 0.50 (64 rows), 2.50 (16 "
                                               "rows), 2.00 (32 rows)."));
  CHECK_THAT(remark({0, 1}), ContainsSubstring("nan (16 rows)"));
}

TEST_CASE("batchnorm_needs_clipping_where_it_gains_more_and_still_ends_worse") {
  const auto judged = [&](const Two& plain, const Two& careful) {
    Table table({"norm", "clip", "warm-up", "seed", "loss", "unused"});
    add(table, {"layernorm", 1.0, 1.0}, {2.5, 2.5});
    add(table, {"layernorm", 0.1, 3.0}, {2.4, 2.4});
    add(table, {"batchnorm", 1.0, 1.0}, plain);
    add(table, {"batchnorm", 0.1, 3.0}, careful);
    for (const char* norm : {"layernorm", "batchnorm"}) {  // never the best
      add(table, {norm, 1.0, 3.0}, {4, 4});
      add(table, {norm, 0.1, 1.0}, {4, 4});
    }
    return verdict("clipping", table);
  };
  CHECK(judged({2.8, 2.8}, {2.46, 2.46}) == holds);          // 0.34 gained; exp(0.06) = 1.062
  CHECK(judged({2.8, 2.8}, {2.42, 2.42}) == does_not_hold);  // exp(0.02) = 1.02
  CHECK(judged({2.6, 2.6}, {2.5, 2.5}) == does_not_hold);    // gains as much as LayerNorm
  CHECK(judged({2.3, 2.3}, {2.3, 2.3}) == reversed);
  CHECK(judged({2.8, 2.57}, {2.46, 2.46}) == not_decidable);
  CHECK(judged({nan, nan}, {2.46, 2.46}) == holds);
}

TEST_CASE("depth_asks_for_no_difference_when_shallow_and_pre_when_deep") {
  const auto judged = [&](const Two& shallow_post, const Two& deep_post, const Two& deep_pre) {
    Table table({"depth", "placement", "warm-up", "lr", "diverged", "seed", "loss", "stuck"});
    for (const char* warmup : {"yes", "no"}) {
      const bool best = std::string(warmup) == "yes";
      const auto add_run = [&](double depth, const char* placement, const Two& loss) {
        add(table, {depth, placement, warmup, 1e-3, 0.0}, best ? loss : Two{nan, 9});
      };
      add_run(2, "post", shallow_post);
      add_run(2, "pre", {2.6, 2.7});
      add_run(16, "post", deep_post);
      add_run(16, "pre", deep_pre);
    }
    return verdict("depth", table);
  };
  CHECK(judged({2.62, 2.68}, {3.3, 3.3}, {2.5, 2.5}) == holds);
  CHECK(judged({2.62, 2.68}, {nan, nan}, {2.5, 2.5}) == holds);
  CHECK(judged({2.62, 2.68}, {2.5, 2.5}, {2.5, 2.5}) == does_not_hold);
  CHECK(judged({2.62, 2.68}, {2.4, 2.4}, {2.5, 2.5}) == does_not_hold);
  CHECK(judged({2.8, 2.9}, {3.3, 3.3}, {2.5, 2.5}) == does_not_hold);
  CHECK(judged({2.4, 2.5}, {3.3, 3.3}, {2.5, 2.5}) == does_not_hold);
  CHECK(judged({2.62, 2.68}, {3.3, 2.5}, {2.5, 2.5}) == not_decidable);
  CHECK(judged({2.8, 2.68}, {3.3, 3.3}, {2.5, 2.5}) == not_decidable);
}

TEST_CASE("residuals_make_up_for_the_mean_only_where_rmsnorm_minds_it_without_them") {
  const auto judged = [&](const Two& plain, const Two& shifted, const Two& without,
                          const Two& far = {}) {
    Table table({"placement", "norm", "shift", "seed", "loss", "unused"});
    const auto add_pair = [&](const char* placement, double shift, const Two& worse) {
      add(table, {placement, "layernorm", shift}, {2.5, 2.5});
      add(table, {placement, "rmsnorm", shift}, {2.5 + worse[0], 2.5 + worse[1]});
    };
    add_pair("pre", 0, plain);
    add_pair("pre", 0.2, shifted);
    add_pair("pre", 1, far);
    add_pair("no-residual", 0, {0, 0});
    add_pair("no-residual", 0.2, without);
    add_pair("no-residual", 1, {0, 0});
    return verdict("rmsnorm-quality", table);
  };
  CHECK(judged({0, 0}, {0, 0.01}, {0.1, 0.2}) == holds);
  CHECK(judged({-0.1, -0.1}, {0, 0.01}, {0.1, 0.2}) == holds);
  CHECK(judged({0, 0}, {0, 0}, {0, 0}) == does_not_hold);
  CHECK(judged({0, 0}, {0.1, 0.1}, {0.1, 0.2}) == does_not_hold);
  CHECK(judged({0, 0}, {0, 0}, {0.1, 0.2}, {0.1, 0.1}) == does_not_hold);
  CHECK(judged({0.1, 0.1}, {0, 0}, {0.1, 0.2}) == does_not_hold);
  CHECK(judged({nan, nan}, {0, 0}, {0.1, 0.2}) == does_not_hold);
  CHECK(judged({0, 0.1}, {0, 0}, {0.1, 0.2}) == not_decidable);
}

TEST_CASE("residual_and_norm_are_both_needed_where_every_design_without_one_loses") {
  const auto judged = [&](const Two& norm_alone, const Two& residual_alone, const Two& rezero,
                          const Two& dyt) {
    Table table({"design", "depth", "seed", "loss", "gradient"});
    for (const double depth : {12, 24}) {
      const bool deep = depth == 24;
      add(table, {"residual and norm", depth}, {2.5, 2.5});
      add(table, {"norm alone", depth}, deep ? norm_alone : Two{2.5, 2.5});
      add(table, {"residual alone", depth}, deep ? residual_alone : Two{2.5, 2.5});
      add(table, {"ReZero", depth}, deep ? rezero : Two{2.5, 2.5});
      add(table, {"residual and DyT", depth}, deep ? dyt : Two{2.5, 2.5});
    }
    return verdict("residuals", table);
  };
  CHECK(judged({3.3, 3.3}, {nan, nan}, {2.8, 2.8}, {2.7, 2.7}) == holds);
  CHECK(judged({3.3, 3.3}, {nan, nan}, {2.5, 2.5}, {2.7, 2.7}) == does_not_hold);
  CHECK(judged({3.3, 3.3}, {nan, nan}, {2.7, 2.7}, {2.5, 2.5}) == does_not_hold);
  CHECK(judged({2.5, 2.5}, {nan, nan}, {2.8, 2.8}, {2.7, 2.7}) == does_not_hold);
  CHECK(judged({2.3, 2.3}, {2.3, 2.3}, {2.3, 2.3}, {2.3, 2.3}) == reversed);
  CHECK(judged({3.3, 2.5}, {nan, nan}, {2.8, 2.8}, {2.7, 2.7}) == not_decidable);
}

TEST_CASE("lengths_matter_where_batchnorm_loses_more_on_one_third_of_the_lines") {
  // On the other thirds BatchNorm is worse by 0.1.
  const auto judged = [&](const char* experiment, double third_in_question, const Two& worse) {
    Table table({"norm", "third", "seed", "loss", "unused"});
    for (const double third : {1, 2, 3}) {
      const Two extra = third == third_in_question ? worse : Two{0.1, 0.1};
      add(table, {"layernorm", third}, {third, third});
      add(table, {"batchnorm", third}, {third + extra[0], third + extra[1]});
    }
    return verdict(experiment, table);
  };
  const std::pair<const char*, double> claims[] = {{"mixed-lengths", 1}, {"overlong-lines", 3}};
  for (const auto& [experiment, third] : claims) {
    CHECK(judged(experiment, third, {0.2, 0.3}) == holds);
    CHECK(judged(experiment, third, {0.1, 0.11}) == does_not_hold);
    CHECK(judged(experiment, third, {0.0, 0.05}) == reversed);
    CHECK(judged(experiment, third, {0.2, 0.1}) == not_decidable);
    CHECK(judged(experiment, third, {nan, nan}) == holds);
    CHECK(judged(experiment, 4 - third, {0.3, 0.2}) == reversed);
    CHECK(judged(experiment, 2, {0.3, 0.2}) == does_not_hold);
  }
}

TEST_CASE("a_batch_without_short_lines_is_passed_over_where_only_short_ones_are_trained_on") {
  const auto lines = [](const auto& length_of) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += std::string(length_of(i), 'a' + i % 5) + "\n";
    return text;
  };
  // Which two lines are held out depends on the number of lines alone. Short are one of them and,
  // for training, one of 18: four of ten batches of 16 have none.
  const Text numbered(lines([](int i) { return i + 1; }), "lines");
  const LineCorpus corpus(numbered, ByteTokenizer(), {.rows = 2, .context = 96});
  const auto held_out = corpus.validation_batch(0, 1).lengths.to_vector<int32_t>();
  REQUIRE(held_out.size() == 2);
  const int first = held_out[0] - 2, second = held_out[1] - 2;  // a length counts the newline
  const int other = first != 0 && second != 0 ? 0 : first != 1 && second != 1 ? 1 : 2;
  const TemporaryFolder folder;
  write_bytes(folder / "lines.txt",
              lines([=](int i) { return i == first || i == other ? 1 : 20; }));
  const Laboratory lab({.quick = true, .seeds = 1, .lines = folder / "lines.txt"});
  const Table table = overlong_lines().measure(lab);
  for (const double third : {1, 2})
    for (const double loss : table.where("third", third).numbers("loss"))
      CHECK(std::isfinite(loss));
}

TEST_CASE("layernorm_helps_long_dependencies_where_its_advantage_grows_with_the_distance") {
  const auto judged = [&](const Two& layer, const Two& batch, const Two& none) {
    Table table({"norm", "distance", "seed", "course", "loss"});
    for (const double distance : {4, 128}) {
      const bool far = distance == 128;
      add(table, {"layernorm", distance}, far ? layer : Two{1, 1});
      add(table, {"batchnorm", distance}, far ? batch : Two{1, 1});
      add(table, {"none", distance}, far ? none : Two{1, 1});
    }
    return verdict("long-dependencies", table);
  };
  CHECK(judged({1, 1}, {1.5, 1.5}, {2, 2}) == holds);
  CHECK(judged({1, 1}, {1.5, 1.5}, {1, 1}) == does_not_hold);
  CHECK(judged({1, 1}, {1, 1}, {2, 2}) == does_not_hold);
  CHECK(judged({2, 2}, {1.5, 1.5}, {2, 2}) == reversed);
  CHECK(judged({1, 1}, {1.5, 1}, {2, 2}) == not_decidable);
  CHECK(judged({1, 1}, {nan, nan}, {nan, nan}) == holds);
}

}  // namespace
}  // namespace tapeformer::lab
