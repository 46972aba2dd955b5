// Norms and softmax on CUDA against the CPU in double, for rows that a warp holds and for rows that
// a block holds.
#include "kernel_check.h"

using namespace tapeformer;

namespace {

const Tensor none;  // not given

struct Size {
  int64_t rows, channels;
};
constexpr Size sizes[] = {
    {1, 1},  {7, 31},  {33, 65},  {5, 257},  {2, 1025}, {1, 8191},  // odd rows
    {5, 40}, {9, 768}, {3, 1000}, {2, 1032}, {1, 8192},             // whole packs
};

// What a forward pass leaves for backward, in double.
struct Kept {
  Tensor mean, rstd;
};

Kept layer_norm_of(const Tensor& s) {
  const int64_t N = s.dim(0);
  const Kept kept{Tensor::empty({N}, DType::f64), Tensor::empty({N}, DType::f64)};
  kernels::layer_norm_forward(s, none, 1, none, none, 1e-5, none, s.empty_like(), kept.mean,
                              kept.rstd);
  return kept;
}

}  // namespace

TEST_CASE("cuda_layer_norm_and_its_gradients") {
  for (const auto [N, C] : sizes) {
    INFO(N << " rows of " << C);
    const Tensor x = random_tensor({N, C}, 1), residual = random_tensor({N, C}, 2);
    const Tensor gamma = random_tensor({C}, 3), beta = random_tensor({C}, 4);
    check_kernel("layer_norm", {x, gamma, beta},
                 {{Shape{N, C}, false}, {Shape{N}, DType::f32}, {Shape{N}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::layer_norm_forward(in[0], none, 1, in[1], in[2], 1e-5, none,
                                               out[0].tensor, out[1].tensor, out[2].tensor);
                 });
    if (C == 1) continue;  // x - mean is 0: all gradients are rounding
    const Kept kept = layer_norm_of(x);
    for (const bool detached : {false, true})
      check_kernel(
          "layer_norm_backward",
          {random_tensor({N, C}, 5), x, gamma, {kept.mean, true}, {kept.rstd, true}, residual},
          {Shape{N, C}, Shape{C}, Shape{C}},
          [&](const Inputs& in, const Outputs& out) {
            kernels::layer_norm_backward(in[0], in[1], in[2], in[3], in[4], detached,
                                         detached ? Tensor{} : in[5], out[0], out[1], out[2]);
          },
          3e-5);
  }
}

TEST_CASE("cuda_layer_norm_adds_a_residual") {
  for (const auto [N, C] : {Size{9, 65}, Size{9, 72}})
    check_kernel("layer_norm", {random_tensor({N, C}, 1), random_tensor({N, C}, 2)},
                 {{Shape{N, C}, false},
                  {Shape{N, C}, false},
                  {Shape{N}, DType::f32},
                  {Shape{N}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::layer_norm_forward(in[0], in[1], 0.5, none, none, 1e-5, out[0].tensor,
                                               out[1].tensor, out[2].tensor, out[3].tensor);
                 },
                 {1e-5, 1});
}

TEST_CASE("cuda_layer_norm_keeps_the_digits_of_rows_far_from_zero") {
  const int64_t C = 257;
  const Tensor x = random_tensor({3, C}, 1);
  kernels::affine(x.clone(), 1, 1e4, Destination{x});
  const Tensor rounded = Tensor::empty({3, C}), y = Tensor::empty({3, C}, DType::f64);
  kernels::copy(x, rounded);
  kernels::copy(rounded, x);
  const Tensor mean = Tensor::empty({3}, DType::f64), rstd = mean.clone();
  kernels::layer_norm_forward(x, none, 1, none, none, 1e-5, none, y, mean, rstd);
  const Tensor gpu_y = Tensor::empty({3, C}, DType::f32, Device::cuda);
  const Tensor gpu_mean = Tensor::empty({3}, DType::f32, Device::cuda);
  const Tensor gpu_rstd = gpu_mean.empty_like();
  kernels::layer_norm_forward(rounded.to(Device::cuda), none, 1, none, none, 1e-5, none, gpu_y,
                              gpu_mean, gpu_rstd);
  const std::vector<float> got = gpu_y.to_vector<float>();
  for (int64_t i = 0; i < y.numel(); ++i) CHECK(std::abs(got[i] - y.data<double>()[i]) < 3e-3);
}

TEST_CASE("cuda_rms_norm_and_its_gradients") {
  for (const auto [N, C] : sizes) {
    INFO(N << " rows of " << C);
    const Tensor x = random_tensor({N, C}, 1), gamma = random_tensor({C}, 3);
    check_kernel("rms_norm", {x, gamma, random_tensor({N, C}, 2)},
                 {{Shape{N, C}, false}, {Shape{N, C}, false}, {Shape{N}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::rms_norm_forward(in[0], in[2], 0.5, in[1], 1e-5, out[0].tensor,
                                             out[1].tensor, out[2].tensor);
                 },
                 {2e-5, 1});
    const Tensor rstd = Tensor::empty({N}, DType::f64);
    kernels::rms_norm_forward(x, none, 1, none, 1e-5, none, x.empty_like(), rstd);
    if (C == 1) continue;
    check_kernel(
        "rms_norm_backward", {random_tensor({N, C}, 5), x, gamma, {rstd, true}},
        {Shape{N, C}, Shape{C}},
        [](const Inputs& in, const Outputs& out) {
          kernels::rms_norm_backward(in[0], in[1], in[2], in[3], none, out[0], out[1]);
        },
        3e-5);
    check_kernel(
        "rms_norm_backward_without_gamma", {random_tensor({N, C}, 5), x, {rstd, true}},
        {Shape{N, C}},
        [](const Inputs& in, const Outputs& out) {
          kernels::rms_norm_backward(in[0], in[1], none, in[2], none, out[0], Destination{});
        },
        3e-5);
  }
}

TEST_CASE("cuda_scale_norm_and_its_gradients") {
  for (const auto [N, C] :
       {Size{7, 31}, Size{5, 40}, Size{5, 768}, Size{3, 1000}, Size{2, 1025}, Size{2, 1032}}) {
    const Tensor x = random_tensor({N, C}, 1), g = Tensor::full({1}, 1.5, DType::f64);
    const Tensor rnorm = Tensor::empty({N}, DType::f64);
    kernels::scale_norm_forward(x, g, 1e-5, x.empty_like(), rnorm);
    check_kernel("scale_norm", {x, g}, {{Shape{N, C}, false}, {Shape{N}, DType::f32}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::scale_norm_forward(in[0], in[1], 1e-5, out[0].tensor, out[1].tensor);
                 });
    check_kernel("scale_norm_backward", {random_tensor({N, C}, 2), x, g, {rnorm, true}},
                 {Shape{N, C}, Shape{1}}, [](const Inputs& in, const Outputs& out) {
                   kernels::scale_norm_backward(in[0], in[1], in[2], 1e-5, in[3], out[0], out[1]);
                 });
  }
}

TEST_CASE("cuda_scale_norm_of_rows_shorter_than_epsilon_divides_by_epsilon") {
  const double epsilon = 1e-3;
  const Tensor x = Tensor::empty({5, 40}, DType::f64);
  kernels::affine(random_tensor({5, 40}, 1), 1e-5, 0, Destination{x});
  check_kernel("scale_norm", {x, Tensor::full({1}, 1.5, DType::f64), random_tensor({5, 40}, 2)},
               {Shape{5, 40}, Shape{1}}, [&](const Inputs& in, const Outputs& out) {
                 const Tensor y = in[0].empty_like();
                 const DType statistic = y.dtype() == DType::f64 ? DType::f64 : DType::f32;
                 const Tensor rnorm = Tensor::empty({5}, statistic, y.device());
                 kernels::scale_norm_forward(in[0], in[1], epsilon, y, rnorm);
                 kernels::scale_norm_backward(in[2], in[0], in[1], epsilon, rnorm, out[0], out[1]);
               });
}

TEST_CASE("cuda_dynamic_tanh_and_its_gradients") {
  for (const auto [N, C] : {Size{7, 31}, Size{130, 65}, Size{130, 72}}) {
    const std::vector<Argument> arguments = {
        random_tensor({N, C}, 1), Tensor::full({1}, 0.5, DType::f64), random_tensor({C}, 2),
        random_tensor({C}, 3), random_tensor({N, C}, 4)};
    check_kernel("dyt", arguments, {{Shape{N, C}, false}},
                 [](const Inputs& in, const Outputs& out) {
                   kernels::dyt_forward(in[0], in[1], in[2], in[3], out[0].tensor);
                 });
    check_kernel(
        "dyt_backward", arguments, {Shape{N, C}, Shape{1}, Shape{C}, Shape{C}},
        [](const Inputs& in, const Outputs& out) {
          kernels::dyt_backward(in[4], in[0], in[1], in[2], out[0], out[1], out[2], out[3]);
        },
        3e-5);
  }
}

namespace {

void check_batch_norm(int64_t C) {
  const int64_t B = 3, T = 47;
  const Tensor x = random_tensor({B, T, C}, 1), dy = random_tensor({B, T, C}, 2);
  const Tensor gamma = random_tensor({C}, 3), beta = random_tensor({C}, 4);
  for (const Tensor& lengths : {Tensor{}, Tensor::from<int32_t>({47, 5, 30})})
    for (const bool centred : {true, false}) {
      check_kernel("batch_moments", {x, lengths}, {{Shape{C}, DType::f32}, {Shape{C}, DType::f32}},
                   [&](const Inputs& in, const Outputs& out) {
                     if (!centred) out[0].tensor.fill(0);
                     kernels::batch_moments(in[0], in[1], centred ? out[0].tensor : Tensor{},
                                            out[1].tensor);
                   });
      const Tensor mean = Tensor::empty({C}, DType::f64), variance = mean.empty_like();
      kernels::batch_moments(x, lengths, centred ? mean : Tensor{}, variance);
      const std::vector<Argument> arguments = {
          x, centred ? mean : Tensor{}, variance, gamma, beta, dy, lengths};
      std::vector<Argument> given = arguments;
      given[1].statistic = given[2].statistic = true;
      check_kernel(
          "batch_norm", given, {{Shape{B, T, C}, false}}, [](const Inputs& in, const Outputs& out) {
            kernels::batch_norm_forward(in[0], in[1], in[2], 1e-5, in[3], in[4], out[0].tensor);
          });
      for (const bool constant : {false, true})
        check_kernel(
            "batch_norm_backward", given, {Shape{B, T, C}, Shape{C}, Shape{C}},
            [&](const Inputs& in, const Outputs& out) {
              kernels::batch_norm_backward(in[5], in[0], in[6], in[1], in[2], 1e-5, constant, in[3],
                                           out[0], out[1], out[2]);
            },
            3e-5);
    }
}

}  // namespace

TEST_CASE("cuda_batch_norm_and_its_gradients") {
  check_batch_norm(33);
  check_batch_norm(40);  // 16 bytes at a time
}

namespace {

// What `backward` writes to one destination, the others being empty, is what it writes beside them.
void check_each_alone(const std::string& name, const std::vector<Shape>& shapes,
                      const std::function<void(const Outputs&)>& backward) {
  const auto unwritten = [](const Shape& shape) {
    return Destination{Tensor::full(shape, NAN, DType::f32, Device::cuda)};
  };
  Outputs all;
  for (const Shape& shape : shapes) all.push_back(unwritten(shape));
  backward(all);
  for (size_t i = 0; i < shapes.size(); ++i) {
    INFO(name << ", gradient " << i);
    Outputs one(shapes.size());
    one[i] = unwritten(shapes[i]);
    backward(one);
    CHECK(one[i].tensor.to_vector<float>() == all[i].tensor.to_vector<float>());
  }
}

}  // namespace

TEST_CASE("cuda_norms_give_each_gradient_alone_as_beside_the_others") {
  for (const int64_t C : {40, 257, 1032}) {
    INFO("rows of " << C);
    const auto random = [](const Shape& shape, uint64_t seed) {
      return random_tensor(shape, seed, DType::f32).to(Device::cuda);
    };
    const Shape rows{6, C}, channels{C};
    const Tensor x = random(rows, 1), dy = random(rows, 2), gamma = random(channels, 3);
    const Tensor y = x.empty_like(), mean = x.empty_like({6}), rstd = mean.empty_like();
    kernels::layer_norm_forward(x, none, 1, none, none, 1e-5, none, y, mean, rstd);
    check_each_alone("layer_norm", {rows, channels, channels}, [&](const Outputs& out) {
      kernels::layer_norm_backward(dy, x, gamma, mean, rstd, false, none, out[0], out[1], out[2]);
    });
    check_each_alone("rms_norm", {rows, channels}, [&](const Outputs& out) {
      kernels::rms_norm_backward(dy, x, gamma, rstd, none, out[0], out[1]);
    });
    const Tensor one = random({1}, 4);
    check_each_alone("scale_norm", {rows, {1}}, [&](const Outputs& out) {
      kernels::scale_norm_backward(dy, x, one, 1e-5, rstd, out[0], out[1]);
    });
    check_each_alone("dyt", {rows, {1}, channels, channels}, [&](const Outputs& out) {
      kernels::dyt_backward(dy, x, one, gamma, out[0], out[1], out[2], out[3]);
    });
    const Tensor centre = random(channels, 5),
                 variance = Tensor::full({C}, 2, DType::f32).to(Device::cuda);
    const Shape batch{2, 3, C};
    for (const bool constant : {false, true})
      check_each_alone("batch_norm", {batch, channels, channels}, [&](const Outputs& out) {
        kernels::batch_norm_backward(dy.view(batch), x.view(batch), none, centre, variance, 1e-5,
                                     constant, gamma, out[0], out[1], out[2]);
      });
  }
}

TEST_CASE("cuda_softmax_log_softmax_and_their_gradients") {
  std::vector<Size> with_longer(std::begin(sizes), std::end(sizes));
  with_longer.insert(with_longer.end(), {{2, 8193}, {2, 8200}});
  for (const auto [N, C] : with_longer) {
    INFO(N << " rows of " << C);
    const Tensor x = random_tensor({N, C}, 1), dy = random_tensor({N, C}, 2);
    for (const bool logarithm : {false, true}) {
      const auto forward =
          logarithm ? [](const Tensor& a, const Tensor& b) { kernels::log_softmax_forward(a, b); }
                    : [](const Tensor& a, const Tensor& b) { kernels::softmax_forward(a, b); };
      const Tensor y = x.empty_like();
      forward(x, y);
      check_kernel("softmax", {x}, {{Shape{N, C}, false}},
                   [&](const Inputs& in, const Outputs& out) { forward(in[0], out[0].tensor); });
      check_kernel(
          "softmax_backward", {dy, y}, {Shape{N, C}},
          [&](const Inputs& in, const Outputs& out) {
            if (logarithm)
              kernels::log_softmax_backward(in[0], in[1], out[0]);
            else
              kernels::softmax_backward(in[0], in[1], out[0]);
          },
          3e-5);
    }
  }
}

TEST_CASE("cuda_softmax_of_a_row_of_minus_infinity_is_zero") {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  for (const int64_t C : {2, 300, 1031, 1032, 8192, 8200}) {
    const Tensor x = Tensor::full({2, C}, lowest, DType::f32);
    x.data<float>()[C + C / 2] = 0;  // the second row has one number to choose
    std::vector<float> chosen(2 * C), logarithm(2 * C, lowest);
    chosen[C + C / 2] = 1;
    logarithm[C + C / 2] = 0;
    const Tensor there = x.to(Device::cuda), y = there.empty_like();
    kernels::softmax_forward(there, y);
    CHECK(y.to_vector<float>() == chosen);
    kernels::log_softmax_forward(there, y);
    CHECK(y.to_vector<float>() == logarithm);
  }
}

TEST_CASE("cuda_softmax_passes_nan_on") {
  for (const int64_t C : {300, 1032, 8200}) {
    const Tensor x = Tensor::zeros({1, C}, DType::f32);
    x.data<float>()[C - 1] = NAN;
    const Tensor there = x.to(Device::cuda), y = there.empty_like();
    for (const bool logarithm : {false, true}) {
      logarithm ? kernels::log_softmax_forward(there, y) : kernels::softmax_forward(there, y);
      for (const float value : y.to_vector<float>()) CHECK(std::isnan(value));
    }
  }
}
