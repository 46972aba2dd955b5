// A program outside of Tapeformer with a layer of its own: fits a scale to four numbers.
#include <cstdio>

#include "autograd/ops.h"
#include "layers/module.h"

using namespace tapeformer;

struct Scale : Module {
  Tensor weight = make_parameter({2});

  Tensor forward(const Tensor& x) const { return x * weight; }  // x [B,2] -> y [B,2]
  void visit(Visitor& visitor) override { visitor.parameter("weight", weight); }
};

int main() {
  Scale layer;
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  const Tensor target = Tensor::from<float>({3, -2, 9, -4}, {2, 2});  // x * [3, -1]
  for (int step = 0; step < 200; ++step) {
    zero_gradient(layer.weight);
    Tape tape;
    const Tensor error = layer.forward(x) - target;
    tape.backward(mean(error * error));
    const float* slope = gradient(layer.weight).data<float>();
    for (int i = 0; i < 2; ++i) layer.weight.data<float>()[i] -= 0.05f * slope[i];
  }
  const float* weight = layer.weight.data<float>();
  std::printf("%s has become [%.3f, %.3f]\n", named_parameters(layer)[0].name.c_str(), weight[0],
              weight[1]);
  const auto near = [](float a, float b) { return a > b - 0.01f && a < b + 0.01f; };
  return near(weight[0], 3) && near(weight[1], -1) ? 0 : 1;
}
