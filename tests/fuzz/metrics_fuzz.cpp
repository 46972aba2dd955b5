// The lines of metrics.jsonl.
#include "tests/fuzz/fuzz.h"
#include "train/metrics.h"

using namespace tapeformer;

const std::vector<std::string> seeds = {
    to_json({.step = 1, .train_loss = 2.5, .lr = 1e-3}) + "\n" +
        to_json({.step = 2, .val_loss = -0.0, .stream_rms = {1, 2.5}}) + "\n",
    to_json({.step = 0, .gradient_norms = {{"blocks.0.weight", 0.5}}, .tid = {{"é\"", 1e300}}}) +
        "\n{\"step\":3,\"train_loss\":nu"};

static std::string lines_of(const std::vector<Metrics>& all) {
  std::string text;
  for (const Metrics& metrics : all) text += to_json(metrics) + "\n";
  return text;
}

FUZZ_TARGET(input) {
  only_errors([&] {
    const std::string text = lines_of(read_metrics(file_of(input)));
    promise(lines_of(read_metrics(file_of(text))) == text, "what was read is written and read");
  });
}
