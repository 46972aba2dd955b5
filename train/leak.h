// Whether a language model looks at what it must not: at later tokens of the text, or at the other
// samples of the batch.
#pragma once

#include <span>
#include <string>

#include "data/corpus.h"
#include "layers/gpt.h"

namespace tapeformer {

/// |after - before| over the logits looked at. Exactly zero where nothing moved.
struct LogitChange {
  double largest = 0, mean = 0;
  bool moved() const { return largest != 0; }
};

struct LeakReport {
  bool training = false;     ///< with the batch's statistics, as while training
  LogitChange later_token;   ///< of sample 0 before its last token, when that token changes
  LogitChange own_tokens;    ///< of sample 0 itself, when all its tokens change: for comparison
  LogitChange other_sample;  ///< of the other samples, when all tokens of sample 0 change
  /// Gradient of a random projection of the output of sample 0 in the middle of its time: the norm
  /// of what reaches the embedded tokens after it, up to it, and of the other samples.
  double later_gradient = 0, own_gradient = 0, other_gradient = 0;

  bool leaks_time() const { return later_token.moved() || later_gradient != 0; }
  bool leaks_samples() const { return other_sample.moved() || other_gradient != 0; }
};

/// Tests the model on tokens (i32) [B,T], B and T at least 2, without dropout. Leaves the model as
/// it is: the gradients are taken in a copy, in which each position has a token of its own. (The
/// copy's norms come from their factory; what they hold besides tensors starts anew.)
LeakReport leak_test(GPT& model, const Tensor& tokens, bool training);
/// The reports as a table, with their meaning in words.
std::string leak_table(std::span<const LeakReport> reports);

/// Draws every parameter anew, at a size at which all paths through a model matter: weights from
/// N(0, 1 / fan-in); biases, gains and scales move by N(0, 0.3^2). A fresh model has zeros that
/// would hide a leak.
void randomise(Module& module, uint64_t seed);

/// Nats per token, over the same targets.
struct PrefixLoss {
  double teacher_forced = 0;  ///< all predictions of a window in one pass
  double prefix = 0;          ///< each from its prefix alone, as generation has it
};
/// Both losses over `batches` validation batches (0: all), in evaluation mode. They are equal, up
/// to rounding, for a model that sees no later token. Takes T forward passes for a batch.
PrefixLoss prefix_evaluation(GPT& model, const Corpus& corpus, int64_t batches);

}  // namespace tapeformer
