// What experiments work with: texts, seeds, and training runs, several at a time.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/parallel.h"
#include "layers/gpt.h"
#include "optim/optimizer.h"

namespace tapeformer::lab {

/// One training run with Adam. The defaults are the lab's reference setting.
struct Trial {
  TransformerConfig model;
  int64_t batch = 16;  ///< rows per micro-batch
  int64_t accumulate = 1;
  int64_t steps = 300;
  int64_t warmup = 0;  ///< steps of linear rise to lr; constant afterwards
  double lr = 1e-3;
  double clip = 0;  ///< 0: no clipping
  AdamWOptions adamw{.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-9, .weight_decay = 0};
  uint64_t seed = 1;               ///< of weights and batches
  int64_t validation_batches = 0;  ///< of the evaluation at the end; 0: all
  /// Optional. Before the first step; after each step (step 1 .. steps).
  std::function<void(GPT&)> prepare = {};
  std::function<void(int64_t step, GPT&)> after_step = {};
};

/// What became of a run. Losses are nats per token.
struct Outcome {
  std::vector<double> losses;  ///< of every training step, before its update
  double training_loss = std::numeric_limits<double>::quiet_NaN();    ///< mean of the last tenth
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  ///< in evaluation mode
  bool diverged = false;  ///< a loss or gradient was not finite; the losses end there
  bool stuck = false;     ///< never learned more than the frequencies of the tokens
  double seconds = 0;
  std::shared_ptr<GPT> model;  ///< of Laboratory's runs; where they diverged, as before the step
};

/// What is measured on: the text, the lines, the sentence pairs, or nothing but random numbers.
enum class Data { text, lines, pairs, random };

/// Sentences with their translations, and others to validate on.
struct ParallelText {
  std::vector<SentencePair> training, validation;
};

/// Kernels use one thread while in scope, in the whole process: not for two threads at once.
struct OneThread {
  OneThread();
  ~OneThread();
  const int before;  ///< how many there were
};

class Laboratory {
 public:
  struct Options {
    bool quick = false;
    int seeds = 3;
    std::string data{};   ///< a file of text; empty: generated stories
    std::string lines{};  ///< a file with an example on each line; empty: sentences of stories
    /// Files of parallel text, both or neither; empty: the embedded language pair.
    std::string src{}, tgt{};
    /// Others to validate on; empty: of src and tgt the last twentieth, at most 1,000 pairs.
    std::string val_src{}, val_tgt{};
    std::string replaced{};                            ///< Card::replaced
    std::function<void(const std::string&)> log = {};  ///< for progress
  };
  explicit Laboratory(const Options& options);

  bool quick() const { return options_.quick; }
  /// `full`, or `quick` in a quick run: for the sizes of an experiment.
  template <class T>
  T size(T full, T quick) const {
    return options_.quick ? quick : full;
  }
  /// 1, 2, ..., as many as were asked for.
  std::vector<uint64_t> seeds() const;
  /// For a card: "tinyshakespeare.txt".
  std::string name_of(Data data) const;
  /// Tells the text from any other, also of the same name: "input.txt 1115394-90a3c1...".
  std::string text_identity() const;
  const std::string& replaced() const { return options_.replaced; }
  void log(const std::string& line) const;

  /// The reference model of the lab: character tokens of text() (or lines()), 64 channels, 4 heads,
  /// FFN 256 with ReLU, context 64, learned positions, Xavier weights, untied output.
  TransformerConfig reference(int64_t layers, const std::string& norm,
                              const std::string& placement) const;
  /// The same for the corpus of lines, with its own vocabulary and context 32.
  TransformerConfig reference_of_lines(int64_t layers, const std::string& norm,
                                       const std::string& placement) const;
  /// Windows of the text, one tenth held out.
  TextCorpus text(int64_t batch, int64_t context, uint64_t seed) const;
  /// Lines, padded to the longest of their batch.
  LineCorpus lines(int64_t batch, int64_t context, uint64_t seed) const;
  /// The pairs of the files, or generated ones.
  ParallelText pairs() const;

  /// Trains a model of `trial` on the text, or on the lines.
  Outcome train_on_text(const Trial& trial) const;
  Outcome train_on_lines(const Trial& trial) const;
  /// Calls f(i) for i in [0, n), on all cores at once, each call with kernels of one thread: small
  /// models gain more from that than from threads of their own. Throws what the first failing call
  /// threw. One for_each at a time in a process (see OneThread).
  void for_each(int64_t n, const std::function<void(int64_t)>& f) const;

 private:
  Options options_;
  Text text_, lines_;
  std::shared_ptr<const Tokenizer> text_tokenizer_, lines_tokenizer_;
  ParallelText pairs_;  // of files alone
};

/// One training run of an existing model. Errors other than a loss or gradient that is not finite
/// are thrown on.
Outcome train(GPT& model, const Corpus& corpus, const Trial& trial);
/// Entropy of the token frequencies in the validation part: the loss of a model that knows nothing
/// else.
double unigram_entropy(const Corpus& corpus);

}  // namespace tapeformer::lab
