// Four additions to Tapeformer from outside of it: an operation with its own backward, a layer, a
// norm and an optimizer. Each is checked, and then a tiny GPT trains with all of them. It ends with
// status 0 only when every check passed. docs/extending.md walks through it.
#include <cmath>
#include <cstdio>

#include "data/corpus.h"
#include "data/stories.h"
#include "layers/gpt.h"
#include "layers/gradcheck.h"
#include "optim/optimizer.h"

using namespace tapeformer;

// ---- An operation: y = relu(x)^2 (Primer, So et al. 2021), dx = 2 relu(x) dy.
Tensor squared_relu(const Tensor& x) {
  const Tensor r = relu(x.detach());  // without the gradient of x, so nothing is recorded here
  const Tensor y = r * r;
  record("squared_relu", {x}, {y},
         [r](BackwardPass& pass) { pass.pass_on(0, 2 * r * pass.gradient()); });
  return y;
}

// ---- A layer: Primer's feed-forward network, down(relu(up(x))^2).
struct PrimerFeedForward : Module {
  Linear up, down;

  explicit PrimerFeedForward(int64_t channels)
      : up(channels, 4 * channels), down(4 * channels, channels) {}

  // [B,T,C] -> [B,T,C]
  Tensor forward(const Tensor& x) const { return down.forward(squared_relu(up.forward(x))); }

  void visit(Visitor& visitor) override {
    visitor.module("up", up);
    visitor.module("down", down);
  }
};

// ---- A norm: DyISRU (Stollenwerk 2025, arXiv 2503.21708), what remains of RMS norm when each
// channel sees itself alone: y = weight sqrt(C) x / sqrt(beta + x^2).
struct DyISRU : Norm {
  Tensor weight;  // [C]
  Tensor beta;    // [1]: in RMS norm, the sum of the other channels' squares

  explicit DyISRU(int64_t channels)
      : weight(make_parameter({channels}, 1)),
        beta(make_parameter({1}, static_cast<double>(channels))) {}

  Tensor forward(const Tensor& x, const NormContext&) override {
    return compute_wide(
        [](const Tensor& x, const Tensor& weight, const Tensor& beta) {
          return weight * (std::sqrt(x.dim(-1)) * x / sqrt(beta + x * x));
        },
        x, weight, beta);
  }

  void visit(Visitor& visitor) override {
    visitor.parameter("weight", weight);
    visitor.parameter("beta", beta);
  }
};

// ---- An optimizer: Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), with g the gradient:
//   p = p - lr (sign(beta1 m + (1 - beta1) g) + decay p),  m = beta2 m + (1 - beta2) g.
class Lion : public Optimizer {
 public:
  explicit Lion(Parameters& parameters, double decay = 0)
      : Optimizer(parameters),
        momentum_(Tensor::zeros(parameters.values().shape(), parameters.values().dtype())),
        decay_(decay) {}

  // What a checkpoint keeps.
  void visit_state(const std::function<void(const std::string&, const Tensor&)>& f) override {
    for (const auto& [name, tensor, offset] : parameters_.entries())
      f("momentum." + name, momentum_.rows(offset, offset + tensor.numel()).view(tensor.shape()));
  }

 private:
  void update(int64_t begin, int64_t end, const Tensor& factor, double lr, bool decays) override {
    constexpr double beta1 = 0.9, beta2 = 0.99;
    const double decay = decays ? decay_ : 0;
    dispatch_wide("lion", momentum_.dtype(), [&](auto type) {
      using T = decltype(type);
      T *p = parameters_.values().data<T>(), *m = momentum_.data<T>();
      const T *gradient = parameters_.gradients().data<T>(), clip = *factor.data<T>();
      for (int64_t i = begin; i < end; ++i) {
        const double g = clip * gradient[i], direction = beta1 * m[i] + (1 - beta1) * g;
        const int sign = (direction > 0) - (direction < 0);
        p[i] -= static_cast<T>(lr * (sign + decay * p[i]));
        m[i] = static_cast<T>(beta2 * m[i] + (1 - beta2) * g);
      }
    });
  }

  Tensor momentum_;
  double decay_;
};

// ---- A model with all of them: a GPT whose blocks have the norm, by its name; after its last
// block the layer, and then the logits.
struct Model : Module {
  GPT gpt;
  PrimerFeedForward layer;
  Linear output;

  explicit Model(const TransformerConfig& config)
      : gpt(config), layer(config.channels), output(config.channels, config.vocabulary) {
    initialize(layer, /*seed=*/1, [](const std::string& /*name*/) { return 0.1; });
    initialize(output, /*seed=*/2, [](const std::string& /*name*/) { return 0.1; });
  }

  Tensor loss(const Batch& batch) {
    const Tensor x = gpt.hidden(batch.inputs);
    return cross_entropy(output.forward(x + layer.forward(x)), batch.targets);
  }

  void visit(Visitor& visitor) override {
    visitor.module("gpt", gpt);
    visitor.module("layer", layer);
    visitor.module("output", output);
  }
};

// ---- The checks.
bool report(bool passed, const char* what, const std::string& found) {
  std::printf("%-6s  %s: %s\n", passed ? "ok" : "FAILED", what, found.c_str());
  return passed;
}

bool check_gradients() {
  const Tensor x = Tensor::from<double>({0.3, -1.2, 0.7, 2.1, -0.4, 0.9}, {1, 2, 3});  // [B,T,C]
  PrimerFeedForward layer(3);
  initialize(layer, /*seed=*/3, [](const std::string& /*name*/) { return 1.0; });
  const std::unique_ptr<Norm> norm = find_norm("dyisru")(3);
  convert(layer, DType::f64);
  convert(*norm, DType::f64);

  bool passed = true;
  const auto note = [&](const char* what, const GradcheckResult& result) {
    passed &= report(result.passed, what, result.message);
  };
  note("operation", gradcheck([](const auto& in) { return squared_relu(in[0]); }, {x}));
  note("layer", gradcheck(layer, [&](const auto& in) { return layer.forward(in[0]); }, {x}));
  note("norm", gradcheck(*norm, [&](const auto& in) { return norm->forward(in[0], {}); }, {x}));
  return passed;
}

// Two steps of 0.25 from zero with known gradients g. In the second, the first weight goes on as
// its momentum says, against its small gradient; the second weight follows its gradient back.
bool check_optimizer() {
  Linear model(1, 2, /*with_bias=*/false);
  Parameters parameters(model);
  Lion optimizer(parameters);
  for (const std::vector<float>& g : {std::vector{1.f, 1.f}, std::vector{-0.05f, -0.2f}}) {
    parameters.zero_gradients();
    Tape tape;
    tape.backward(sum(model.weight * Tensor::from(g, {2, 1})));
    optimizer.step(0.25);
  }
  const auto weight = model.weight.to_vector<float>();
  return report(weight == std::vector{-0.5f, 0.f}, "optimizer",
                "weights " + std::to_string(weight[0]) + ", " + std::to_string(weight[1]));
}

bool train() {
  const Text text(generate_stories(/*seed=*/1, /*bytes=*/50'000), "the embedded stories");
  const auto tokenizer = make_tokenizer("character", text.view());
  const TextCorpus corpus(text, *tokenizer, {.rows = 8, .context = 32});
  Model model({.vocabulary = tokenizer->vocabulary_size(),
               .context = 32,
               .layers = 2,
               .channels = 32,
               .norm = "dyisru"});
  Parameters parameters(model);
  Lion optimizer(parameters);
  double first = 0, last = 0;
  for (int step = 0; step <= 100; ++step) {
    parameters.zero_gradients();
    Tape tape;
    const Tensor loss = model.loss(corpus.training_batch(step));
    tape.backward(loss);
    optimizer.step(/*lr=*/2e-3, /*max_norm=*/1);
    last = loss.item();
    if (step == 0) first = last;
    if (step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, last);
  }
  return report(last < first - 1, "training", "the loss fell by " + std::to_string(first - last));
}

int main() {
  register_norm("dyisru", [](int64_t channels) { return std::make_unique<DyISRU>(channels); });
  const bool gradients = check_gradients(), optimizer = check_optimizer(), trained = train();
  return gradients && optimizer && trained ? 0 : 1;
}
