// The smallest training program: a network with one hidden layer learns exclusive or.
#include <cstdio>

#include "layers/linear.h"
#include "optim/optimizer.h"

using namespace tapeformer;

struct Network : Module {
  Linear hidden{2, 8}, output{8, 1};

  Tensor forward(const Tensor& x) { return output.forward(tanh(hidden.forward(x))); }

  void visit(Visitor& visitor) override {
    visitor.module("hidden", hidden);
    visitor.module("output", output);
  }
};

int main() {
  const Tensor x = Tensor::from<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2});
  const Tensor y = Tensor::from<float>({0, 1, 1, 0}, {4, 1});

  Network network;
  initialize(network, 1, [](const std::string&) { return 1.0; });
  Parameters parameters(network);
  AdamW optimizer(parameters);

  for (int step = 0; step <= 500; ++step) {
    parameters.zero_gradients();
    Tape tape;
    const Tensor error = network.forward(x) - y;
    const Tensor loss = mean(error * error);
    tape.backward(loss);
    optimizer.step(0.02);
    if (step % 100 == 0) std::printf("step %3d  loss %.6f\n", step, loss.item());
  }
  const Tensor result = network.forward(x);
  for (int i = 0; i < 4; ++i)
    std::printf("%g xor %g = %6.3f\n", x.data<float>()[2 * i], x.data<float>()[2 * i + 1],
                result.data<float>()[i]);
}
