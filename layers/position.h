// How a model knows where a token stands.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

/// learned and sinusoidal are added to the embeddings; rotary and alibi act inside attention.
enum class Position { none, learned, sinusoidal, rotary, alibi };

/// Throws for an unknown name, listing the known.
Position find_position(const std::string& name);
std::vector<std::string> position_names();

/// [T, C]: channel 2i is sin(t / 10000^(2i/C)), channel 2i + 1 the cosine of the same
/// (Vaswani et al. 2017, section 3.5). C is even.
Tensor sinusoidal_positions(int64_t time, int64_t channels);

}  // namespace tapeformer
