#include "train/evaluation.h"

#include "layers/float16.h"

namespace tapeformer {
namespace {

// The mean loss; `after_batch` sees the model after each.
template <class F>
double mean_loss(GPT& model, const Corpus& corpus, int64_t batches, bool batch_statistics,
                 const StopRequest& stop, const F& after_batch) {
  const Pause pause;
  const int64_t count = corpus.validation_batches(batches);
  double sum = 0, tokens = 0;
  for (int64_t i = 0; i < count; ++i) {
    end_where_asked(stop);
    const Batch batch = corpus.validation_batch(i, count);
    const Context context{.lengths = batch.lengths, .batch_statistics = batch_statistics};
    sum += batch.tokens * model.loss(batch.inputs, batch.targets, context).item();
    tokens += batch.tokens;
    after_batch();
  }
  return sum / tokens;
}

}  // namespace

double evaluate(GPT& model, const Corpus& corpus, int64_t batches, bool batch_statistics,
                const StopRequest& stop) {
  return mean_loss(model, corpus, batches, batch_statistics, stop, [] {});
}

std::vector<Float16Loss> evaluate_in_float16(GPT& model, const Corpus& corpus, int64_t batches) {
  TransformerConfig config = model.config();
  const std::vector<std::string> names = float16_norms_of(config.norm);
  check(!names.empty(), "float16 norms: there are emulations of layernorm and rmsnorm, not of '",
        config.norm, "'");
  register_float16_norms();
  std::vector<Float16Loss> result{{config.norm, evaluate(model, corpus, batches)}};
  const DType dtype = named_parameters(model)[0].tensor.dtype();
  for (const std::string& name : names) {
    config.norm = name;
    GPT emulated(config);
    convert(emulated, dtype);
    copy_tensors(model, emulated);
    Float16Loss& entry = result.emplace_back(Float16Loss{.norm = name});
    entry.loss = mean_loss(emulated, corpus, batches, false, {}, [&] {
      for (const NamedModule& part : named_modules(emulated))
        if (const auto* norm = dynamic_cast<const HalfNorm*>(part.module)) {
          entry.overflows += norm->overflows;
          entry.underflows += norm->underflows;
        }
    });
  }
  return result;
}

}  // namespace tapeformer
