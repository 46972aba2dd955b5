// Small translators in training: what experiments on translation work with.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "lab/laboratory.h"
#include "lab/table.h"
#include "layers/seq2seq.h"
#include "train/translator.h"

namespace tapeformer::lab {

/// One training run with Adam and an inverse-square-root schedule.
struct TranslatorTrial {
  TransformerConfig model = {};
  PairOptions batches{.batch_tokens = 1024, .longest = 40};
  int64_t steps = 2000;     ///< a fifth of them is warm-up
  int64_t evaluations = 1;  ///< at equal distances, the last at the end
  double lr = 5e-3;
  double clip = 1;
  double smoothing = 0.1;
  uint64_t seed = 1;  ///< of weights, batches and dropout
};

/// How good a translator was after some steps. Not numbers where it had diverged by then.
struct TranslatorScore {
  int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  ///< of validation, nats per token
  double bleu = std::numeric_limits<double>::quiet_NaN();  ///< greedy, lower case
};

struct TranslatorOutcome {
  std::vector<TranslatorScore> course;  ///< as many as there are evaluations
  double seconds = 0;  ///< that its thread computed in training, without the evaluations
};

/// The laboratory's parallel text, in lower case and as ids, and trainings on it.
class TranslationLaboratory {
 public:
  /// Learns one byte-pair encoding of both sides.
  explicit TranslationLaboratory(const Laboratory& lab);

  /// The reference setting: 2 encoder and 2 decoder layers (quick: one of each), Pre-LN, 64
  /// channels, 4 heads, FFN 256 with ReLU, sinusoidal positions, Xavier weights, tied embeddings,
  /// dropout 0.1; batches of 1,024 tokens (quick: 512). Empty names stand for LayerNorm.
  TranslatorTrial reference(const std::string& encoder_norm, const std::string& decoder_norm,
                            int64_t steps, uint64_t seed) const;
  /// Sentence pairs in a mean batch.
  double pairs_in_a_batch(const PairOptions& batches) const;
  TranslatorOutcome train(const TranslatorTrial& trial) const;

 private:
  bool quick_;
  ParallelText text_;
  SentenceCoders coders_;
};

/// What the reference setting is, for the methods of cards.
extern const char* const translation_setting;

/// A training run, and the cells that name it in the table.
struct TranslatorRun {
  std::vector<Cell> cells;
  TranslatorTrial trial;
};

/// Trains them all, several at a time. The table has `columns` for the cells of the runs, then
/// "step", "loss", "bleu" and "seconds", in a row for each evaluation.
Table train_translators(const Laboratory& lab, const TranslationLaboratory& translation,
                        const std::vector<std::string>& columns,
                        const std::vector<TranslatorRun>& runs);

/// The rows of the last evaluations.
Table at_the_end(const Table& runs);
/// One number of BLEU for each row, 0 where it is none: what diverged translates nothing.
std::vector<double> bleus(const Table& runs);

}  // namespace tapeformer::lab
