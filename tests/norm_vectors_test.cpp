// The norm layers against PyTorch's: vectors/norms.json has steps of training with the running
// statistics after each, and an evaluation, in f64 to eleven digits and in f32 to 1e-6.
#include "layers/norm.h"
#include "tests/norms.h"
#include "tests/vectors/vectors.h"

namespace tapeformer {
namespace {

using vectors::expect_close;
using vectors::tensor_from;
using vectors::tensors_from;

void expect_step(const std::string& what, Norm& norm, const nlohmann::json& step, DType dtype,
                 double tolerance) {
  const auto expected = [&](const char* key) { return tensor_from(step.at(key), DType::f64); };
  const NormContext context = step.at("training") ? training_context() : evaluation_context();
  const NormPass pass =
      pass_of(norm, tensor_from(step.at("x"), dtype), tensor_from(step.at("dy"), dtype), context);
  expect_close(what + ", output", pass.y, expected("y"), tolerance);
  expect_close(what + ", gradient of x", pass.dx, expected("dx"), tolerance);
  const auto gradients = tensors_from(step.at("gradients"), DType::f64);
  const auto parameters = named_parameters(norm);
  REQUIRE(parameters.size() == gradients.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    expect_close(what + ", gradient of " + parameters[i].name, pass.gradients[i],
                 gradients.at(parameters[i].name), tolerance);
  auto buffers = tensors_from(step.at("buffers"), DType::f64);
  if (buffers.count("running_var")) buffers["running_variance"] = buffers["running_var"];
  for (const NamedTensor& entry : named_tensors(norm))
    if (entry.role == Role::buffer)
      expect_close(what + ", " + entry.name, entry.tensor, buffers.at(entry.name), tolerance);
}

TEST_CASE("norm_layers_equal_pytorch_through_training_and_evaluation") {
  const auto held = vectors::read_json("norms.json");
  REQUIRE(held.at("cases").size() == 9);
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-11}, {DType::f32, 1e-6}})
    for (const auto& [name, each] : held.at("cases").items()) {
      const auto norm = random_norm(name.substr(0, name.find('_')), 32, dtype);
      const auto parameters = tensors_from(each.at("parameters"), dtype);
      for (const NamedTensor& entry : named_parameters(*norm))
        entry.tensor.copy_from(parameters.at(entry.name));
      // Rounding numbers near 20 to f32 alone moves what is left after the mean by 1e-6.
      const double wider = name == "batchnorm_far_from_zero" ? 10 * tolerance : tolerance;
      for (size_t i = 0; i < each.at("steps").size(); ++i)
        expect_step(name + ", step " + std::to_string(i), *norm, each.at("steps")[i], dtype, wider);
    }
}

}  // namespace
}  // namespace tapeformer
