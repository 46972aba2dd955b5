#include "train/memory.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/storage.h"
#include "train/format.h"

namespace tapeformer {
namespace {

// Widths of a block. All in double, because a size that is asked for may be as large as its type.
struct Block {
  bool gated;
  double channels, keys, hidden;  // there are as many values as keys

  explicit Block(const TransformerConfig& c)
      : gated(c.activation == "swiglu"),
        channels(static_cast<double>(c.channels)),
        keys(c.kv_heads && c.heads > 0
                 ? channels / static_cast<double>(c.heads) * static_cast<double>(c.kv_heads)
                 : channels),
        hidden(c.hidden ? static_cast<double>(c.hidden) : channels * (gated ? 8.0 / 3 : 4)) {}

  double attention() const { return 2 * channels * (channels + keys); }
  double feed_forward() const { return (gated ? 3 : 2) * channels * hidden; }
  // What backward needs of a token: the inputs of the four matrices, queries, keys and values, and
  // of a gated layer both factors.
  double activations() const { return 4 * channels + 2 * keys + (gated ? 3 : 1) * hidden; }
};

std::string gigabytes(double bytes) { return fixed(bytes / 1e9, 1) + " GB"; }

}  // namespace

MatrixSizes matrix_sizes(const TransformerConfig& config) {
  const Block block(config);
  const auto decoder = static_cast<double>(config.layers);
  const auto encoder = static_cast<double>(config.encoder_layers);
  const bool two_stacks = config.encoder_layers > 0;
  MatrixSizes sizes;
  sizes.vocabularies =
      block.channels * (static_cast<double>(config.vocabulary) * (config.tied ? 1 : 2) +
                        static_cast<double>(config.source_vocabulary));
  if (config.position == "learned")
    sizes.positions = block.channels * static_cast<double>(config.context) * (two_stacks ? 2 : 1);
  sizes.blocks = (decoder + encoder) * (block.attention() + block.feed_forward());
  if (two_stacks) sizes.blocks += decoder * block.attention();  // to the encoder's output
  return sizes;
}

TrainingMemory training_memory(const TransformerConfig& config, DType dtype, int64_t tokens) {
  const auto size = static_cast<double>(size_of(dtype));
  const auto wide_size = static_cast<double>(size_of(wide(dtype)));
  // Weights, gradients and two moments; the weights of a 16-bit model once more.
  const double each = 4 * wide_size + (is_16bit(dtype) ? size : 0);
  return {each * matrix_sizes(config).all(), size * static_cast<double>(tokens) *
                                                 static_cast<double>(config.layers) *
                                                 Block(config).activations()};
}

void check_training_memory(const TransformerConfig& config, DType dtype, int64_t tokens,
                           Device device) {
  if (config.channels <= 0 || config.layers <= 0) return;  // which the model itself refuses
  const TrainingMemory need = training_memory(config, dtype, tokens);
  const auto limit = static_cast<double>(memory_limit(device));
  if (!(need.all() > limit)) return;
  const MatrixSizes sizes = matrix_sizes(config);
  const double each = need.weights / sizes.all();
  const auto largest = std::max(
      {std::pair(need.activations, "batch, context, layers or channels"),
       std::pair(each * sizes.blocks, "layers, channels or hidden"),
       std::pair(each * sizes.positions, "context or channels"),
       std::pair(each * sizes.vocabularies, "channels, or take a tokenizer with fewer ids")});
  fail("out of memory: training takes ", gigabytes(need.all()), " or more (",
       gigabytes(need.weights), " for ", compact(sizes.all()),
       " weights, their gradients and moments",
       tokens > 0 ? ", " + gigabytes(need.activations) + " for what backward needs of a batch" : "",
       ") and ", device == Device::cpu ? "this machine has " : "the GPU has ", gigabytes(limit),
       "; lower ", largest.second);
}

}  // namespace tapeformer
