// The lab's experiments on translation: their verdicts, from tables made by hand and from
// trainings, and the parallel text that they take.
#include <array>
#include <cmath>

#include "data/languages.h"
#include "lab/experiments/experiments.h"
#include "lab/experiments/translation.h"
#include "tests/catch.h"
#include "tests/lab_verdicts.h"
#include "tests/sham.h"
#include "tests/temporary_folder.h"
#include "train/files.h"

namespace tapeformer::lab {
namespace {

// Two evaluations of a run: after 10 steps, where nothing is known yet, and after 20.
void add_course(Table& table, const std::string& name, const Two& bleu, const Two& loss,
                const Two& seconds = {1, 1}) {
  for (const size_t seed : {0, 1}) {
    table.add({name, double(seed + 1), 10.0, 5.0, 0.0, seconds[seed]});
    table.add({name, double(seed + 1), 20.0, loss[seed], bleu[seed], seconds[seed]});
  }
}

TEST_CASE("batchnorm_costs_bleu_where_every_seed_ends_more_than_2_below_layernorm") {
  const auto judged = [](const Two& layer, const Two& batch) {
    Table table({"norm", "seed", "step", "loss", "bleu", "seconds"});
    add_course(table, "layernorm", layer, {2, 2});
    add_course(table, "batchnorm", batch, {2, 2});
    for (const char* other : {"batchnorm-unmasked", "powernorm", "rmsnorm", "scalenorm"})
      add_course(table, other, {50, 0}, {1, 3});
    return verdict("translation-norms", table);
  };
  CHECK(judged({20, 21}, {17.9, 18.9}) == holds);
  CHECK(judged({20, 21}, {18.1, 22}) == does_not_hold);
  CHECK(judged({20, 21}, {17, 20}) == not_decidable);
  CHECK(judged({20, 21}, {23, 24}) == reversed);
  CHECK(judged({20, 21}, {nan, nan}) == holds);  // what diverged translates nothing
}

TEST_CASE("a_norm_over_time_hides_its_harm_where_bleu_falls_and_the_loss_does_not_rise") {
  const auto judged = [](const Two& bleu, const Two& loss) {
    Table table({"design", "seed", "step", "loss", "bleu", "seconds"});
    add_course(table, "over features", {20, 21}, {2, 2});
    add_course(table, "over time in the encoder", {20, 0}, {2, 9});
    add_course(table, "over time in the decoder", bleu, loss);
    return verdict("translation-time-axis", table);
  };
  CHECK(judged({1, 2}, {1.5, 2.04}) == holds);
  CHECK(judged({1, 2}, {2.1, 2.1}) == does_not_hold);
  CHECK(judged({1, 2}, {2.1, 2}) == not_decidable);
  CHECK(judged({20, 20}, {2, 2}) == does_not_hold);
  CHECK(judged({1, 20}, {2, 2}) == not_decidable);
  CHECK(judged({nan, nan}, {nan, nan}) == does_not_hold);  // that tells
}

TEST_CASE("the_recipe_holds_with_95_percent_of_the_bleu_in_120_percent_of_the_time") {
  const auto judged = [](const Two& bleu, const Two& seconds) {
    Table table({"design", "seed", "step", "loss", "bleu", "seconds"});
    for (const size_t seed : {0, 1}) {
      const double name = double(seed + 1);
      table.add({"LayerNorm", name, 20.0, 2.0, 20.0, 100.0});
      table.add({"LayerNorm in the recipe's batches", name, 10.0, 2.0, 5.0, 500.0});
      table.add({"BatchNorm by the recipe", name, 10.0, 2.0, bleu[seed], seconds[seed]});
    }
    return verdict("translation-recipe", table);
  };
  CHECK(judged({19.1, 30}, {119, 50}) == holds);
  CHECK(judged({18.9, 18}, {119, 119}) == does_not_hold);
  CHECK(judged({19.1, 19.1}, {121, 150}) == does_not_hold);
  CHECK(judged({18.9, 19.1}, {119, 119}) == not_decidable);
  CHECK(judged({19.1, 19.1}, {119, 121}) == not_decidable);
  CHECK(judged({nan, nan}, {119, 119}) == does_not_hold);
}

TEST_CASE("the_recipe_is_not_judged_where_a_design_lost_a_run") {
  Table table({"design", "seed", "step", "loss", "bleu", "seconds"});
  for (const double seed : {1.0, 2.0}) table.add({"LayerNorm", seed, 20.0, 2.0, 20.0, 100.0});
  table.add({"LayerNorm in the recipe's batches", 1.0, 10.0, 2.0, 5.0, 500.0});
  table.add({"BatchNorm by the recipe", 1.0, 10.0, 2.0, 19.0, 110.0});
  CHECK_THROWS_WITH(find_experiment("translation-recipe").judge(table),
                    ContainsSubstring("runs are missing"));
}

Laboratory quick_lab() { return Laboratory({.quick = true, .seeds = 1}); }

TEST_CASE("a_norm_over_time_ruins_a_translator_and_a_sham_of_it_does_not") {
  const TemporaryFolder folder;
  const Experiment& experiment = find_experiment("translation-time-axis");
  const Card card = run_experiment(experiment, quick_lab(), folder.path);
  CHECK(card.judgement.verdict == holds);
  CHECK(card.data == "the embedded language pair; quick sizes");
  const Table runs = read_table(folder.path / "translation-time-axis.csv");
  CHECK(experiment.judge(runs).verdict == holds);
  CHECK(to_json(judge_again(experiment, folder.path)) == to_json(card));
  const Sham sham("layernorm-time", "layernorm");
  const Table shams = experiment.measure(quick_lab());
  CHECK(experiment.judge(shams).verdict == does_not_hold);
  // Equal seeds and equal norms: equal to the last bit, also in runs side by side.
  const auto bleu = [&](const char* design) { return bleus(shams.where("design", design)); };
  CHECK(bleu("over time in the decoder") == bleu("over features"));
  CHECK(bleu("over features") == bleus(runs.where("design", "over features")));
}

// An encoder of which nothing arrives.
struct Deaf : Norm {
  Tensor forward(const Tensor& x, const NormContext&) override { return 0.0 * x; }
};

TEST_CASE("shams_under_the_name_of_batchnorm_change_what_it_costs_in_bleu") {
  const Experiment& experiment = find_experiment("translation-norms");
  {
    const Sham sham("batchnorm", "layernorm");
    CHECK(experiment.judge(experiment.measure(quick_lab())).verdict == does_not_hold);
  }
  const Sham sham("batchnorm", [](int64_t) { return std::make_unique<Deaf>(); });
  const Table table = experiment.measure(quick_lab());
  CHECK(experiment.judge(table).verdict == holds);
  CHECK(at_the_end(table).where("norm", "layernorm").number("bleu") > 5);  // which hears
}

TEST_CASE("a_translator_that_diverges_has_no_numbers_from_there_on") {
  const Laboratory lab = quick_lab();
  const TranslationLaboratory translation(lab);
  TranslatorTrial trial = translation.reference("", "", 12, 1);
  trial.evaluations = 3;
  trial.lr = 1e30;
  trial.clip = 0;
  const TranslatorOutcome outcome = translation.train(trial);
  REQUIRE(outcome.course.size() == 3);
  CHECK(outcome.course[0].step == 4);
  CHECK(outcome.course[2].step == 12);
  CHECK(std::isnan(outcome.course[2].loss));
  CHECK(std::isnan(outcome.course[2].bleu));
}

std::string lines_of(const std::vector<SentencePair>& pairs, std::string SentencePair::*side) {
  std::string text;
  for (const SentencePair& pair : pairs) text += pair.*side + "\n";
  return text;
}

TEST_CASE("the_laboratory_reads_parallel_text_and_holds_a_part_of_it_out") {
  const TemporaryFolder folder;
  const auto pairs = generate_pairs(5, 60);
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  write_file_atomically(path("a.txt"), lines_of(pairs, &SentencePair::source));
  write_file_atomically(path("b.txt"), lines_of(pairs, &SentencePair::target));
  Laboratory::Options options{
      .quick = true, .seeds = 1, .src = path("a.txt"), .tgt = path("b.txt")};
  const Laboratory lab(options);
  CHECK(lab.name_of(Data::pairs) == "a.txt with b.txt");
  const ParallelText text = lab.pairs();
  REQUIRE(text.training.size() == 57);
  REQUIRE(text.validation.size() == 3);
  CHECK(text.training[56].source == pairs[56].source);
  CHECK(text.validation[0].target == pairs[57].target);

  options.val_src = path("b.txt");
  options.val_tgt = path("a.txt");
  const Laboratory other(options);
  CHECK(other.name_of(Data::pairs) == "a.txt with b.txt, validated on b.txt");
  CHECK(other.pairs().training.size() == 60);
  CHECK(other.pairs().validation[7].source == pairs[7].target);
  CHECK(quick_lab().name_of(Data::pairs) == "the embedded language pair");
}

}  // namespace
}  // namespace tapeformer::lab
