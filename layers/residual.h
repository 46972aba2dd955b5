// The placement plug: every way of joining a sub-layer f, its norm N and the residual stream x.
// A block hands over its list of sub-layers and does not know which way is in use.
//
//   pre            x = x + f(N(x)), one more norm at the end       Xiong et al. 2020
//   post           x = N(x + f(x))                                 Vaswani et al. 2017
//   sandwich       x = x + N2(f(N1(x)))                            Ding et al. 2021 (CogView)
//   peri           sandwich; embedding and output are normed too   Kim et al. 2025 (Peri-LN)
//   post-branch    x = x + N(f(x)), one more norm at the end       OLMo team 2024 (OLMo 2)
//   deepnorm       x = N(alpha x + f(x)), alpha = (2L)^(1/4), smaller weights; table 1 has other
//                  alphas for encoder-decoders                     Wang et al. 2022, section 4
//   rezero         x = x + a f(x), a = 0 at first, no norm         Bachlechner et al. 2020, eq. 2
//   b2t            post, and the block's input is added before its last norm
//                                                                  Takase et al. 2022 (B2T)
//   parallel       x = x + f1(N(x)) + f2(N(x)), one norm for both  Wang & Komatsuzaki 2021 (GPT-J)
//   mix            the first quarter of the blocks post, the others pre
//                                                                  Li et al. 2024 (Mix-LN)
//   residual-dual  x = N(x + f(x)), r = r + f(x); at the end x + N(r)
//                                                                  Xie et al. 2023 (ResiDual)
//   no-residual    x = N(f(x)): what the residual is for can only be seen without it
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layers/norm.h"

namespace tapeformer {

/// The residual stream between sub-layers and blocks. What is still to be added to x travels along,
/// so that the addition and the norm that follows are one pass over memory, across block borders.
struct Stream {
  Tensor x;        // [B,T,C]
  Tensor pending;  // undefined, or [B,T,C]: the stream's value is x + pending
  Tensor dual;     // the second stream of residual-dual
};

using SubLayer = std::function<Tensor(const Tensor&)>;

/// The norms of one block, and how its sub-layers join the stream.
class Residual : public Module {
 public:
  virtual void forward(Stream& stream, std::span<const SubLayer> sublayers,
                       const NormContext& context) = 0;
  /// Reports norm1, norm2, ..., in the order in which they act.
  void visit(Visitor& visitor) override;
  /// The most that one of its norms mixes.
  Mixes mixes(bool training) const;

 protected:
  Residual(const NormFactory& norm, int64_t channels, int count);
  std::vector<std::unique_ptr<Norm>> norms_;
};

/// A stack of blocks: on its own, or with its partner in an encoder-decoder.
struct StackShape {
  enum class Role { alone, encoder, decoder } role = Role::alone;
  int64_t blocks = 1;
  int64_t partner_blocks = 0;  ///< of the decoder's encoder, or the encoder's decoder
  /// Self-attention and FFN; in a decoder cross-attention between them.
  int sublayers() const { return role == Role::decoder ? 3 : 2; }
};

struct ResidualOptions {
  NormFactory norm;
  int64_t channels = 0;
  int sublayers = 2;
  int64_t block = 0, blocks = 1;  // which block this is, of how many
  StackShape::Role role = StackShape::Role::alone;
  int64_t partner_blocks = 0;
};

/// Everything a placement decides.
struct Placement {
  std::function<std::unique_ptr<Residual>(const ResidualOptions&)> make;
  /// Turns the stream into the stack's output. final_norm is null unless has_final_norm.
  std::function<Tensor(const Stream&, Norm* final_norm, const NormContext&)> finish;
  bool has_final_norm = true;
  bool has_embedding_norm = false;
  std::string initialization = "normal";  // see initialization.h
  /// Factor on the weights of the projections that write to the stream, under normal.
  std::function<double(const StackShape&)> output_gain = [](const StackShape&) { return 1.0; };
  /// Factor on values, attention outputs and both maps of the FFN, under either.
  std::function<double(const StackShape&)> branch_gain = [](const StackShape&) { return 1.0; };
};

/// The stream as one tensor: x + pending.
Tensor value_of(const Stream& stream);

/// Throws for an unknown name, listing the known.
Placement find_placement(const std::string& name);
std::vector<std::string> placement_names();
void register_placement(const std::string& name, Placement placement);

}  // namespace tapeformer
