// Everything that shapes a Transformer, in one struct of plain values.
#pragma once

#include <cstdint>
#include <string>

namespace tapeformer {

/// The defaults have the GPT-2 shape; LLaMA's takes a few words more:
///   TransformerConfig gpt2{.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12,
///                          .channels = 768};
///   TransformerConfig llama{.vocabulary = 32000, .context = 2048, .layers = 12, .heads = 12,
///                           .kv_heads = 4, .channels = 768, .norm = "rmsnorm",
///                           .position = "rotary", .activation = "swiglu", .bias = false,
///                           .tied = false};
struct TransformerConfig {
  int64_t vocabulary = 0;
  int64_t context = 64;  ///< longest sequence
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  int64_t channels = 128;
  int64_t hidden = 0;                    ///< of the feed-forward network; 0: default_hidden_size()
  std::string norm = "layernorm";        ///< norm_names()
  std::string placement = "pre";         ///< placement_names()
  std::string position = "learned";      ///< position_names()
  std::string activation = "gelu_tanh";  ///< activation_names()
  std::string initialization = "";       ///< initialization_names(); empty: what the placement asks
  double rotary_base = 10000;
  double dropout = 0;  ///< of the embeddings and of every sub-layer's output
  bool bias = true;    ///< in the linear maps
  bool qk_norm = false;
  bool tied = true;  ///< the output projection is the embedding table (Press & Wolf 2017)
  bool causal = true;
  // Of an encoder-decoder (seq2seq.h) alone:
  int64_t encoder_layers = 0;     ///< 0: as many as layers, which are the decoder's
  int64_t source_vocabulary = 0;  ///< 0: source and target share vocabulary and embedding table
  std::string encoder_norm = "";  ///< empty: norm
  std::string decoder_norm = "";  ///< empty: norm

  friend bool operator==(const TransformerConfig&, const TransformerConfig&) = default;
};

}  // namespace tapeformer
