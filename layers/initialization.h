// The weights that a Transformer starts from.
#pragma once

#include <string>
#include <vector>

#include "layers/config.h"
#include "layers/module.h"

namespace tapeformer {

/// Draws every weight of a model of this configuration by `seed`; gains stay 1 and biases 0.
///   normal  N(0, 0.02^2), projections that write to the residual stream scaled as the placement
///           says (Radford et al. 2019, section 2.3)
///   xavier  N(0, 2 / (inputs + outputs)) for each linear map, queries, keys and values apart
///           (Glorot & Bengio 2010, eq. 12); embeddings N(0, 1/2), so that token and position
///           together have variance 1, or N(0, 1/C) where the table is the output projection too
/// An encoder-decoder multiplies its embeddings by sqrt(C), so with either they are N(0, 1/C), and
/// learned positions N(0, 1/2), as large as sinusoidal ones.
/// With either, the placement's factor multiplies values, attention outputs and the FFN (DeepNorm's
/// beta). Throws for an unknown name, listing the known.
void initialize(Module& model, const TransformerConfig& config, uint64_t seed);
std::vector<std::string> initialization_names();

}  // namespace tapeformer
