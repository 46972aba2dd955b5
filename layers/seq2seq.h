// An encoder-decoder (Vaswani et al. 2017): the encoder reads the source, and the decoder writes
// the target token by token, looking at what it has written and at the encoder's states.
#pragma once

#include <memory>
#include <vector>

#include "layers/stack.h"

namespace tapeformer {

class Seq2Seq : public Module {
 public:
  /// Weights are drawn by `seed` (initialization.h). The embeddings are multiplied by sqrt(C)
  /// (section 3.4). Throws for a configuration that makes no sense.
  explicit Seq2Seq(const TransformerConfig& config, uint64_t seed = 1);

  /// source (i32) [B,S] -> the encoder's states [B,S,C]. Reads context.memory_lengths.
  Tensor encode(const Tensor& source, const Context& context = {});
  /// source [B,S] and tokens [B,T], both i32 -> [B,T,C], after the final norm. Padding: of the
  /// source context.memory_lengths, of the tokens context.lengths.
  Tensor hidden(const Tensor& source, const Tensor& tokens, const Context& context = {});
  /// -> [B,T,V]: the scores of the token that follows each.
  Tensor logits(const Tensor& source, const Tensor& tokens, const Context& context = {});
  /// Mean cross-entropy of targets [B,T] with smoothed labels; targets of -1 do not count.
  Tensor loss(const Tensor& source, const Tensor& tokens, const Tensor& targets,
              const Context& context = {}, double smoothing = 0);

  /// What decoding a batch keeps: keys and values of the tokens so far, and those of the source,
  /// which are computed once.
  struct Cache {
    std::vector<KVCache> tokens;
    std::vector<KeysAndValues> memory;
    Tensor memory_lengths;

    /// Row i becomes what row rows[i] was, for n rows: the hypotheses that a beam goes on with.
    /// `memory`: of the source as well, which rows of one sentence share.
    void select(const std::vector<int32_t>& rows, bool memory);
  };
  /// Encodes source [B,S] for decoding up to `capacity` tokens, `copies` times side by side:
  /// row b of the source is rows b copies ... b copies + copies - 1 of the cache.
  Cache start(const Tensor& source, const Tensor& source_lengths, int64_t capacity,
              int64_t copies = 1);
  /// Appends tokens [B,T] to the cache -> [B,V], the scores of what follows the last.
  Tensor decode(const Tensor& tokens, Cache& cache);

  /// The most that one of the decoder's norms mixes. Where that is more than nothing outside
  /// training, it cannot be decoded over a cache.
  Mixes decoder_mixes(bool training) const { return decoder_.mixes(training); }

  const TransformerConfig& config() const { return config_; }
  void visit(Visitor& visitor) override;

 private:
  Tensor embed(const Embedding& table, const Tensor& tokens) const;
  const Tensor& output_weight() const { return output_ ? output_->weight : tokens_.weight; }

  TransformerConfig config_;
  Embedding tokens_;
  std::unique_ptr<Embedding> source_tokens_;  // null when shared
  Stack encoder_, decoder_;
  std::unique_ptr<Linear> output_;  // null when tied
};

}  // namespace tapeformer
