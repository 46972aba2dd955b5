// A trained translator as its checkpoint holds it, and training one: the task for the Trainer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/parallel.h"
#include "layers/seq2seq.h"
#include "train/checkpoint.h"
#include "train/decoding.h"
#include "train/trainer.h"

namespace tapeformer {

/// Both sides of a language pair; they may share one tokenizer.
struct SentenceCoders {
  SentenceCoder source, target;
};
/// Learns a byte-pair encoding of both sides together, or `separate` ones.
SentenceCoders learn_coders(const std::vector<SentencePair>& pairs, int64_t merges, bool lowercase,
                            bool separate = false);
std::string to_json(const SentenceCoders& coders);
/// Throws for what to_json() did not write.
SentenceCoders coders_from_json(std::string_view json);

struct Translator {
  std::unique_ptr<Seq2Seq> model;
  SentenceCoders coders;
  ModelFile description;
};

/// Reads best.safetensors of a folder, or else its checkpoint; or a model file. Throws what the
/// readers throw, and where tokenizer and model do not belong together.
Translator load_translator(const std::filesystem::path& folder_or_file,
                           Device device = Device::cpu);

struct TokenPair {
  std::vector<int32_t> source, target;
};
struct TranslationRun {
  std::vector<std::string> sentences;
  std::vector<TokenPair> ids;  ///< as the model read and wrote them, without the ends
  double mean_score = 0;       ///< of the model, over the sentences that are not empty
  int64_t cut = 0;  ///< sources longer than the model's context, of which the beginning counts
};
/// Translates sentences in batches of about `batch_tokens` source tokens, fewer where the beam is
/// wider than 5; an empty one stays empty.
TranslationRun translate_sentences(Seq2Seq& model, const SentenceCoders& coders,
                                   const std::vector<std::string>& sentences,
                                   const DecodingOptions& options, int64_t batch_tokens = 2048);
/// The same with each token drawn: a function of the seed and the sentence's number, which counts
/// from `first`.
TranslationRun sample_sentences(Seq2Seq& model, const SentenceCoders& coders,
                                const std::vector<std::string>& sentences,
                                const SamplingOptions& sampling, uint64_t seed, int64_t first = 0,
                                int64_t batch_tokens = 2048);

struct TranslationTaskOptions {
  int64_t accumulate = 1;      ///< batches per update
  double smoothing = 0.1;      ///< of the labels in training
  int64_t bleu_sentences = 0;  ///< of the validation text, the first, that are translated; 0: all
};

/// Trains a translator: mean cross-entropy per target token, with smoothed labels in training and
/// without in validation; validation BLEU of greedy translations, in lower case.
class TranslationTask : public TrainTask {
 public:
  TranslationTask(Seq2Seq& model, const SentenceCoders& coders, const PairCorpus& training,
                  const PairCorpus& validation, std::vector<SentencePair> validation_text,
                  const TranslationTaskOptions& options);
  Module& model() override { return model_; }
  std::vector<MicroBatch> micro_batches(int64_t step) override;
  Validation validate(bool whole, const StopRequest& stop) override;

  const Validation& latest() const { return latest_; }
  /// The latest translations of validation sources, for looking at.
  const std::vector<std::string>& translations() const { return translations_; }
  /// Of the training batches so far: the share of places that were padding.
  double padding() const { return places_ > 0 ? padding_ / places_ : 0; }

 private:
  Seq2Seq& model_;
  const SentenceCoders& coders_;
  const PairCorpus& training_;
  const PairCorpus& validation_;
  std::vector<std::string> sources_, references_;
  TranslationTaskOptions options_;
  Validation latest_;
  std::vector<std::string> translations_;
  double padding_ = 0, places_ = 0;
};

/// Mean cross-entropy per target token over a corpus, in nats, without smoothing. Asks `stop`
/// before every batch.
double translation_loss(Seq2Seq& model, const PairCorpus& corpus, const StopRequest& stop = {});

}  // namespace tapeformer
