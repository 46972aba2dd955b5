// Claims that no experiment here can decide: about what papers say, and about other machines.
#include "lab/experiments/experiments.h"

namespace tapeformer::lab {

Experiment paper_batchnorm() {
  return {.name = "paper-batchnorm",
          .claim = "The original Transformer paper tried BatchNorm, and it worked badly.",
          .source = "said of Vaswani et al. 2017 (arXiv 1706.03762)",
          .literature =
              "There is no such text: section 3.1 states that layer normalisation follows each "
              "residual connection, and the paper reports no other norm. BatchNorm in Transformers "
              "was compared later (Shen et al. 2020, arXiv 2003.07845).",
          .expected = Verdict::does_not_hold};
}

Experiment resnet() {
  return {.name = "resnet",
          .claim = "Layer norm in ResNet-50 costs 4-5 % accuracy against BatchNorm.",
          .source = "a common comparison of norms in vision",
          .literature =
              "On ImageNet at batch 32 per device, layer norm's error is 1.7 points above "
              "BatchNorm's; 4.8 points are instance norm's, 0.5 group norm's (Wu & He 2018, table "
              "1, arXiv 1803.08494).",
          .expected = Verdict::does_not_hold};
}

Experiment communication() {
  return {.name = "communication",
          .claim = "RMSNorm eases communication between devices, and ScaleNorm is T5's norm.",
          .source = "said in comparisons of norms",
          .literature =
              "No support was found for the first: both norms reduce over one token's features, "
              "which usual parallel training keeps on one device. The second is wrong: T5 has "
              "layer norm without mean and bias, which is RMSNorm (Raffel et al. 2019, arXiv "
              "1910.10683); ScaleNorm is of Nguyen & Salazar 2019 (arXiv 1910.05895).",
          .expected = Verdict::does_not_hold};
}

}  // namespace tapeformer::lab
