// A GPT in training on random tokens: the step that the benchmarks time.
#pragma once

#include <cmath>
#include <string>

#include "bench/machine.h"
#include "bench/settings.h"
#include "layers/gpt.h"
#include "optim/optimizer.h"
#include "train/operation_profile.h"
#include "train/training_step.h"

namespace tapeformer::bench {

/// A model in training, on batches of random tokens.
class Training {
 public:
  explicit Training(const Setting& setting, const std::string& norm = "layernorm",
                    DType dtype = DType::f32, Device device = Device::cpu)
      : setting_(setting),
        device_(device),
        model_(with_norm(setting.config(), norm)),
        parameters_(converted(model_, dtype, device)),
        optimizer_(parameters_, {.beta2 = 0.99, .weight_decay = 0.1}),
        random_({1, Purpose::batches}) {}

  struct Times {
    double forward, backward, optimizer, step;  // milliseconds
  };

  Times step() {
    const Tensor tokens = draw_tokens(), targets = draw_tokens();
    Times times{};
    times.step = milliseconds([&] {
      parameters_.zero_gradients();
      {
        Tape tape;
        Tensor loss;
        times.forward = milliseconds([&] {
          loss = model_.loss(tokens, targets, {.training = true});
          check(std::isfinite(loss.item()), "the loss is ", loss.item());
        });
        times.backward = milliseconds([&] { tape.backward(loss); });
      }
      times.optimizer = milliseconds([&] {
        optimizer_.step(1e-4, 1.0);
        synchronize(device_);
      });
    });
    return times;
  }

  /// The same step as a run takes it, which waits for none of it (training_step.h); in f16 without
  /// a run's loss scale, for which it waits.
  TrainingStep start_step() {
    const Tensor tokens = draw_tokens(), targets = draw_tokens();
    const auto loss = [this, tokens, targets] {
      return model_.loss(tokens, targets, {.training = true});
    };
    return TrainingStep(model_, parameters_, optimizer_, {{tokens.numel(), loss}}, steps_++, 1e-4,
                        1.0, 1);
  }

  /// A step as step()'s, for the profile.
  void profile_step(OperationProfile& profile) {
    const Tensor tokens = draw_tokens(), targets = draw_tokens();
    profile.step([&] {
      parameters_.zero_gradients();
      {
        Tape tape;
        profile.watch(tape);
        tape.backward(model_.loss(tokens, targets, {.training = true}));
      }
      profile.part("clipping and AdamW", [&] { optimizer_.step(1e-4, 1.0); });
    });
  }

  int64_t parameters() const { return parameters_.size(); }

 private:
  static TransformerConfig with_norm(TransformerConfig config, const std::string& norm) {
    config.norm = norm;
    return config;
  }
  static GPT& converted(GPT& model, DType dtype, Device device) {
    if (dtype != DType::f32 || device != Device::cpu) convert(model, dtype, device);
    return model;
  }
  Tensor draw_tokens() {
    const Tensor tokens = Tensor::empty({setting_.batch, setting_.context}, DType::i32);
    for (int64_t i = 0; i < tokens.numel(); ++i)
      tokens.data<int32_t>()[i] =
          static_cast<int32_t>(random_.below(static_cast<uint32_t>(setting_.vocabulary)));
    return tokens;
  }

  Setting setting_;
  Device device_;
  GPT model_;
  Parameters parameters_;
  AdamW optimizer_;
  Generator random_;
  int64_t steps_ = 0;
};

}  // namespace tapeformer::bench
