// The verdicts of the experiments on how norms work: from tables made up for each verdict, and from
// short runs of those that cost little.
#include <algorithm>
#include <cmath>

#include "lab/experiments/experiments.h"
#include "lab/experiments/mechanisms.h"
#include "tests/catch.h"
#include "train/profile.h"

namespace tapeformer::lab {

namespace {

Verdict judged(const Experiment& experiment, const Table& table) {
  const Judgement judgement = experiment.judge(table);
  // Whoever reads the table from its file comes to the same.
  CHECK(experiment.judge(Table::from_csv(table.csv())).verdict == judgement.verdict);
  CHECK_FALSE(judgement.measured.empty());
  CHECK(experiment.draw(table).svg().find("<path") != std::string::npos);
  return judgement.verdict;
}

Laboratory quick_laboratory() { return Laboratory({.quick = true, .seeds = 1}); }

// f(seed index, value) for each of the values.
template <class F>
void for_seeds(const std::vector<double>& values, const F& f) {
  for (size_t i = 0; i < values.size(); ++i) f(i + 1.0, values[i]);
}

TEST_CASE("padding_is_judged_by_the_rise_of_unmasked_batchnorm_over_layernorm") {
  const auto verdict = [](const std::vector<double>& rises, double of_layernorm = 0) {
    Table table({"norm", "seed", "extra", "loss", "distance"});
    for_seeds(rises, [&](double seed, double rise) {
      for (const double extra : {0, 8, 32}) {
        table.add({"layernorm", seed, extra, 2 + of_layernorm * extra / 32, 0.0});
        table.add({"batchnorm", seed, extra, 2.0, 0.0});
        table.add({"batchnorm-unmasked", seed, extra, 2 + rise * extra / 32, 0.1});
      }
    });
    return judged(padding(), table);
  };
  CHECK(verdict({0.03, 0.2}) == Verdict::holds);
  CHECK(verdict({0.01, 0.0}) == Verdict::does_not_hold);
  CHECK(verdict({0.03, 0.2}, 0.2) == Verdict::not_decidable);  // -0.17 and 0
  CHECK(verdict({-0.03, -0.2}) == Verdict::reversed);
  CHECK(verdict({0.03, 0.01}) == Verdict::not_decidable);
  CHECK(verdict({0.03, NAN}) == Verdict::not_decidable);
}

// A table of the leak experiment in which batchnorm moves logits by so much, and a norm that says
// it mixes nothing lets such a gradient reach other samples.
Table leak_of_batchnorm(const std::vector<double>& later, const std::vector<double>& other,
                        double of_mine = 0) {
  Table table({"norm", "mixes", "mode", "batch", "seed", "later_token", "other_sample",
               "later_gradient", "other_gradient"});
  for (const auto& [norm, mixes] :
       {std::pair{"layernorm", "nothing"}, std::pair{"mine", "nothing"},
        std::pair{"batchnorm", "samples"}, std::pair{"instancenorm", "time"},
        std::pair{"groupnorm-time", "time"}})
    for (const char* mode : {"training", "evaluation"})
      for (size_t i = 0; i < later.size(); ++i) {
        const bool leaks = norm == std::string("batchnorm");
        table.add({norm, mixes, mode, 16.0, i + 1.0, leaks ? later[i] : 0, leaks ? other[i] : 0,
                   0.0, norm == std::string("mine") ? of_mine : 0});
      }
  return table;
}

TEST_CASE("a_leak_must_reach_both_later_tokens_and_other_samples") {
  const auto verdict = [](const std::vector<double>& later, const std::vector<double>& other) {
    return judged(leak(), leak_of_batchnorm(later, other));
  };
  CHECK(verdict({0.01, 0.1}, {0.2, 0.002}) == Verdict::holds);
  CHECK(verdict({0, 0.1}, {0.2, 0}) == Verdict::does_not_hold);
  CHECK(verdict({0, 0.1}, {0.2, 0.2}) == Verdict::not_decidable);
}

TEST_CASE("a_norm_that_mixes_though_it_says_no_shows_on_the_card_of_the_leak") {
  const auto first = [](double gradient) {
    return leak().judge(leak_of_batchnorm({0.1}, {0.1}, gradient)).measured[0];
  };
  CHECK(first(0).name == "the largest of all changes and gradients of layernorm, mine");
  CHECK(first(0).values == std::vector<double>{0});
  CHECK(first(0.25).values == std::vector<double>{0.25});
  CHECK(first(NAN).values == std::vector<double>{INFINITY});
}

TEST_CASE("a_short_run_finds_the_leak_and_none_of_single_token_norms") {
  // A user's own norm takes part by its name; here one that looks at other times and says so.
  register_norm("leaking", find_norm("layernorm-time"));
  const Table table = leak().measure(quick_laboratory());
  CHECK(judged(leak(), table) == Verdict::holds);
  const auto measured = leak().judge(table).measured;
  CHECK(measured[0].values == std::vector<double>{0});  // exactly
  for (const std::string& norm : norm_names())
    CHECK(std::ranges::count(table.distinct("norm"), Cell(norm)) ==
          (norm.find("float16") == std::string::npos));
  const auto mine =
      std::ranges::find(measured, "leaking, 16 samples: earlier logits move by", &Measured::name);
  REQUIRE(mine != measured.end());
  CHECK(mine->values[0] > 1e-3);
  CHECK(table.where("norm", "instancenorm").where("mode", "evaluation").numbers("later_token")[0] >
        1e-3);
}

TEST_CASE("post_gradients_compare_the_first_block_with_the_last_of_the_deepest_models") {
  const auto verdict = [](const std::vector<double>& ratios) {
    Table table({"placement", "layers", "seed", "block", "gradient"});
    for (const char* placement : {"post", "pre", "deepnorm"})
      for_seeds(ratios, [&](double seed, double ratio) {
        const bool is_post = placement == std::string("post");
        for (const double layers : {6, 12})  // in the shallower models the other way round
          for (double block = 1; block <= layers; ++block)
            table.add({placement, layers, seed, block,
                       block > 1    ? 0.5
                       : !is_post   ? 0.5
                       : layers > 6 ? 0.5 * ratio
                                    : 0.5 / ratio});
      });
    return judged(post_gradients(), table);
  };
  CHECK(verdict({2.1, 9}) == Verdict::holds);
  CHECK(verdict({0.4, 0.1}) == Verdict::reversed);
  CHECK(verdict({1.9, 0.6}) == Verdict::does_not_hold);
  CHECK(verdict({0.6, 0.4}) == Verdict::does_not_hold);
  CHECK(verdict({2.1, 1.9}) == Verdict::not_decidable);
  CHECK(verdict({NAN, 0.4}) == Verdict::not_decidable);
}

TEST_CASE("activation_growth_fits_the_exponent_of_the_depth") {
  const auto verdict = [](const std::vector<double>& exponents) {
    Table table({"setting", "seed", "block", "rms"});
    for_seeds(exponents, [&](double seed, double exponent) {
      for (double block = 0; block <= 24; ++block) {
        table.add({"pre", seed, block, std::pow(block + 1e-9, exponent)});
        table.add({"without norm", seed, block, std::exp(block / 2)});
        table.add({"post", seed, block, 1.0});
        table.add({"without residual", seed, block, 1.0});
      }
    });
    return judged(activation_growth(), table);
  };
  CHECK(verdict({0.5, 0.7}) == Verdict::does_not_hold);
  CHECK(verdict({0.8, 1.2}) == Verdict::holds);
  CHECK(verdict({0.5, 1}) == Verdict::not_decidable);
  CHECK(verdict({0.5, NAN}) == Verdict::not_decidable);
}

TEST_CASE("the_stream_grows_by_a_square_root_with_a_norm_and_exponentially_without") {
  const Laboratory lab = quick_laboratory();
  const Table table = activation_growth().measure(lab);
  CHECK(judged(activation_growth(), table) == Verdict::does_not_hold);
  CHECK(activation_growth().judge(table).measured[0].values[0] == Approx(0.5).margin(0.2));
  // What a deep model has after six blocks is what one of six ends with.
  GPT shallow(lab.reference(6, "layernorm", "pre"), 1);
  const auto rms = stream_rms(shallow, lab.text(16, 64, 1).training_batch(0).inputs);
  CHECK(table.where("setting", "pre").where("block", 6.0).number("rms") ==
        Approx(rms.back()).epsilon(1e-5));
}

TEST_CASE("the_time_axis_is_judged_by_the_loss_of_prefixes") {
  const auto verdict = [](const std::vector<double>& differences) {
    Table table({"norm", "seed", "step", "teacher_forced", "prefix"});
    for_seeds(differences, [&](double seed, double difference) {
      for (const double step : {100, 200}) {
        table.add({"layernorm", seed, step, 2.3, 2.3});
        // Teacher forcing says the opposite, and so does the first of the two steps.
        table.add({"layernorm-time", seed, step, 2.3 - difference,
                   step < 200 ? 2.3 - difference : 2.3 + difference});
      }
    });
    return judged(time_axis(), table);
  };
  CHECK(verdict({0.06, 1}) == Verdict::holds);
  CHECK(verdict({-0.06, -1}) == Verdict::reversed);
  CHECK(verdict({0.04, -0.04}) == Verdict::does_not_hold);
  CHECK(verdict({0.06, 0.04}) == Verdict::not_decidable);
  CHECK(verdict({0.06, NAN}) == Verdict::not_decidable);
}

TEST_CASE("float16_overflows_when_outputs_are_wrong") {
  const auto verdict = [](const std::vector<double>& shares) {
    Table table(
        {"norm", "rms", "seed", "wrong", "zero", "square_overflows", "sum_overflows", "epsilon"});
    for (const double rms : {1, 1000})
      for_seeds(shares, [&](double seed, double share) {
        table.add({"layernorm", rms, seed, rms > 1 ? share : 0, 0.0, 256.0, 11.3, 0.0});
      });
    return judged(float16_overflow(), table);
  };
  CHECK(verdict({0.02, 1}) == Verdict::holds);
  CHECK(verdict({0, 0.01}) == Verdict::does_not_hold);
  CHECK(verdict({0, 1}) == Verdict::not_decidable);
}

TEST_CASE("a_short_run_finds_the_thresholds_of_float16") {
  const Table table = float16_overflow().measure(quick_laboratory());
  CHECK(judged(float16_overflow(), table) == Verdict::holds);
  const Table one = table.where("norm", "layernorm").where("rms", 1.0);
  CHECK(one.number("wrong") == 0);
  CHECK(one.number("square_overflows") == 256);
  // From 65,520 on a sum is infinite.
  CHECK(one.number("sum_overflows") == Approx(std::sqrt(65520.0 / 512)).epsilon(0.001));
  CHECK(one.number("epsilon") == 0);
  CHECK(table.where("norm", "layernorm").where("rms", 64.0).number("zero") == 1);
}

TEST_CASE("both_float16_remedies_must_work") {
  const auto verdict = [](const std::vector<double>& clamp, const std::vector<double>& wide) {
    Table table({"norm", "rms", "seed", "error"});
    for (const double rms : {1, 2, 8, 64})
      for (size_t i = 0; i < clamp.size(); ++i) {
        table.add({"layernorm-float16", rms, i + 1.0, 1.0});
        table.add({"layernorm-float16-clamp", rms, i + 1.0, rms == 2 ? clamp[i] : 0.001});
        table.add({"layernorm-float16-f32stats", rms, i + 1.0, rms == 2 ? wide[i] : 0.001});
      }
    return judged(float16_remedies(), table);
  };
  CHECK(verdict({0.01, 0.001}, {0.001, 0.019}) == Verdict::holds);
  CHECK(verdict({0.5, 0.001}, {0.001, 0.03}) == Verdict::does_not_hold);
  CHECK(verdict({NAN, 0.5}, {0.001, 0.001}) == Verdict::does_not_hold);
  CHECK(verdict({0.5, 0.001}, {0.001, 0.001}) == Verdict::not_decidable);
}

TEST_CASE("a_short_run_finds_that_clamping_is_no_remedy_and_float32_is") {
  const Table table = float16_remedies().measure(quick_laboratory());
  CHECK(judged(float16_remedies(), table) == Verdict::does_not_hold);
  for (const double error : table.where("norm", "layernorm-float16-f32stats").numbers("error"))
    CHECK(error < 0.001);  // half a unit in the last place of outputs below 4: 2^-10
  CHECK(table.where("norm", "layernorm-float16-clamp").where("rms", 1000.0).number("error") > 0.1);
}

TEST_CASE("rmsnorm_speed_is_judged_by_medians_of_training_steps") {
  const auto verdict = [](const std::vector<double>& savings) {
    Table table({"what", "norm", "seed", "round", "milliseconds"});
    for_seeds(savings, [&](double seed, double saving) {
      for (const char* what : {"norm in cache", "norm out of cache", "training step"})
        for (const double round : {0, 1, 2}) {
          const bool is_step = what == std::string("training step");
          table.add({what, "layernorm", seed, round, 10.0});
          table.add({what, "rmsnorm", seed, round,  // one slow round does not count
                     round == 1 ? 100.0
                     : is_step  ? 10 * (1 - saving)
                                : 1.0});
        }
    });
    return judged(rmsnorm_speed(), table);
  };
  CHECK(verdict({0.16, 0.4}) == Verdict::holds);
  CHECK(verdict({0.14, 0}) == Verdict::does_not_hold);
  CHECK(verdict({-0.2, -0.16}) == Verdict::reversed);
  CHECK(verdict({0.16, 0.14}) == Verdict::not_decidable);
}

TEST_CASE("a_placement_swap_is_judged_by_the_losses_at_the_end") {
  const auto verdict = [](const std::vector<double>& differences) {
    Table table({"run", "seed", "step", "loss"});
    for (const double step : {400, 420})
      for_seeds(differences, [&](double seed, double difference) {
        table.add({"post, swapped to pre", seed, step, step > 400 ? 2.1 + difference : 2.6});
        table.add({"post", seed, step, 2.1});
        table.add({"pre", seed, step, 2.0});
      });
    return judged(placement_swap(), table);
  };
  CHECK(verdict({0.03, 0.5}) == Verdict::holds);
  CHECK(verdict({-0.03, -0.5}) == Verdict::reversed);
  CHECK(verdict({0.01, -0.01}) == Verdict::does_not_hold);
  CHECK(verdict({0.03, 0.01}) == Verdict::not_decidable);
  CHECK(verdict({0.03, NAN}) == Verdict::not_decidable);
}

TEST_CASE("fluctuation_is_judged_around_the_trend_and_at_batch_16") {
  const auto verdict = [](const std::vector<double>& ratios) {
    Table table({"norm", "batch", "seed", "step", "variance"});
    for (const double batch : {4, 16})
      for_seeds(ratios, [&](double seed, double ratio) {
        for (double step = 150; step < 200; ++step) {
          const double wave = std::fmod(step, 2) - 0.5;
          table.add({"layernorm", batch, seed, step, 4 + 0.1 * wave});
          // The same height everywhere but for a trend, which must not count.
          table.add({"batchnorm", batch, seed, step,
                     (step / 50) * (1 + 0.1 / 4 * wave * (batch == 16 ? ratio : 1 / ratio))});
        }
      });
    return judged(residual_fluctuation(), table);
  };
  CHECK(verdict({1.7, 3}) == Verdict::holds);
  CHECK(verdict({0.6, 0.2}) == Verdict::reversed);
  CHECK(verdict({1.3, 0.8}) == Verdict::does_not_hold);
  CHECK(verdict({1.3, 3}) == Verdict::not_decidable);
  CHECK(verdict({3, NAN}) == Verdict::not_decidable);
}

TEST_CASE("claims_without_experiment_have_what_the_literature_says") {
  for (const Experiment& card : {paper_batchnorm(), resnet(), communication()}) {
    CHECK_FALSE(card.measure);
    CHECK(card.literature.find("arXiv") != std::string::npos);
    CHECK(card.expected == Verdict::does_not_hold);
  }
}

}  // namespace
}  // namespace tapeformer::lab
