// Two models in two threads of one process, one of which fails: the other notices nothing.
#include <atomic>
#include <thread>

#include "core/threads.h"
#include "data/stories.h"
#include "tests/catch.h"
#include "train/trainer.h"

using namespace tapeformer;

namespace {

TextCorpus corpus_of_stories() {
  static const Text text(generate_stories(1, 20'000), "stories");
  return {text, ByteTokenizer(), {.rows = 4, .context = 16}};
}

TransformerConfig small_model(const std::string& norm) {
  return {.vocabulary = 256,
          .context = 16,
          .layers = 2,
          .heads = 2,
          .channels = 16,
          .norm = norm,
          .dropout = 0.1};
}

std::vector<double> losses_of(const std::string& norm, uint64_t seed) {
  const TextCorpus corpus = corpus_of_stories();
  GPT model(small_model(norm), seed);
  Parameters parameters(model);
  AdamW optimizer(parameters, {});
  std::vector<double> losses;
  for (int64_t step = 0; step < 10; ++step)
    losses.push_back(
        training_step(model, parameters, optimizer, corpus, step, 2, 1e-3, 1, seed).loss);
  return losses;
}

// A loss whose backward throws before it reaches the model.
void fail_in_backward(uint64_t seed) {
  const Batch batch = corpus_of_stories().training_batch(0);
  GPT model(small_model("batchnorm"), seed);
  const RandomScope random({seed, Purpose::dropout, 0, 0});
  Tape tape;
  const Tensor loss = model.loss(batch.inputs, batch.targets, {.training = true});
  const Tensor broken = loss.clone();
  record("broken", {loss}, {broken}, [](BackwardPass&) { throw std::runtime_error("broken"); });
  tape.backward(broken);
}

}  // namespace

TEST_CASE("a_model_that_throws_in_backward_leaves_one_in_another_thread_its_bits") {
  set_num_threads(2);
  for (const char* norm : {"layernorm", "batchnorm", "powernorm"}) {
    CAPTURE(norm);
    const std::vector<double> alone = losses_of(norm, 3);
    const size_t baseline = memory_stats().live_bytes;
    std::atomic<bool> done = false;
    std::atomic<int> failures = 0;
    std::thread other([&] {
      do {
        try {
          fail_in_backward(5);
        } catch (const std::runtime_error&) {
          ++failures;
        }
      } while (!done);
    });
    const std::vector<double> beside = losses_of(norm, 3);
    done = true;
    other.join();
    CHECK(beside == alone);
    CHECK(failures > 0);
    CHECK(memory_stats().live_bytes == baseline);
  }
}
