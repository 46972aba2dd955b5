#include "kernel_check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "emulation.h"

namespace tapeformer {
namespace {

using cuda_emulator::Order;

float number(DType dtype, const void* data, size_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  if (dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  return __half2float(static_cast<const __half*>(data)[i]);
}

// x, in f64, rounded to `dtype`.
Tensor rounded(const Tensor& x, DType dtype) {
  const Tensor y = Tensor::empty(x.shape(), dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto value = static_cast<float>(x.data<double>()[i]);
    if (dtype == DType::f32)
      static_cast<float*>(y.raw())[i] = value;
    else if (dtype == DType::bf16)
      static_cast<__nv_bfloat16*>(y.raw())[i] = __float2bfloat16_rn(value);
    else
      static_cast<__half*>(y.raw())[i] = __float2half_rn(value);
  }
  return y;
}

Tensor widened(const Tensor& x) {
  if (x.dtype() == DType::i32) return x;
  const Tensor y = Tensor::empty(x.shape(), DType::f64);
  for (int64_t i = 0; i < x.numel(); ++i) y.data<double>()[i] = number(x.dtype(), x.raw(), i);
  return y;
}

// As x, one element after a place where packs may begin.
Tensor odd_copy(const Tensor& x) {
  const Tensor room = Tensor::empty({(x.numel() / 16 + 2) * 16}, x.dtype(), x.device());
  const Tensor copy = room.rows(1, x.numel() + 1).view(x.shape());
  copy.copy_from(x);
  return copy;
}

DType dtype_of_result(const Result& result, DType dtype) {
  return result.dtype == DType::f64 ? dtype : result.dtype;
}

double unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
}

void compare(const Tensor& gpu, const Tensor& reference, double tolerance) {
  double worst = 0;
  for (int64_t i = 0; i < reference.numel(); ++i) {
    if (reference.dtype() == DType::i32) {
      worst += gpu.data<int32_t>()[i] != reference.data<int32_t>()[i];
      continue;
    }
    const double expected = reference.data<double>()[i];
    const double got = number(gpu.dtype(), gpu.raw(), i);
    if (got == expected) continue;  // infinities
    const double error = std::abs(got - expected) / std::max(1.0, std::abs(expected));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  CHECK(worst <= tolerance);
}

struct Setting {
  DType dtype;
  Order order;
  bool accumulate;
  size_t odd = SIZE_MAX;  // which tensor of arguments and results lies odd, if any
};

void check_setting(const std::vector<Argument>& arguments, const std::vector<Result>& results,
                   const Call& call, const Tolerance& tolerance, const Setting& setting) {
  size_t placed = 0;
  const auto place = [&](const Tensor& x) {
    return placed++ == setting.odd && x.defined() ? odd_copy(x) : x;
  };
  Inputs here, there;
  for (const Argument& argument : arguments) {
    const Tensor& values = argument.values;
    const bool given = values.defined(), index = given && values.dtype() == DType::i32;
    const DType dtype = argument.statistic ? DType::f32 : setting.dtype;
    const Tensor low = !given || index ? values : rounded(values, dtype);
    here.push_back(given ? widened(low) : Tensor{});
    there.push_back(place(given ? low.to(Device::cuda) : Tensor{}));
  }
  Outputs expected, got;
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    const bool accumulate = result.adds && setting.accumulate;
    const DType dtype = dtype_of_result(result, setting.dtype);
    if (dtype == DType::i32) {
      expected.push_back({Tensor::zeros(result.shape, dtype)});
      got.push_back({place(Tensor::empty(result.shape, dtype, Device::cuda))});
      continue;
    }
    const Tensor before = rounded(random_tensor(result.shape, 900 + i), dtype);
    expected.push_back({widened(before), accumulate});
    got.push_back({place(before.to(Device::cuda)), accumulate});
    // What is overwritten must not be read.
    if (!accumulate) got.back().tensor.fill(NAN);
  }
  call(here, expected);
  cuda_emulator::set_order(setting.order, 3);
  call(there, got);
  for (size_t i = 0; i < results.size(); ++i) {
    INFO("result " << i);
    const double roundings = 1.5 * unit(dtype_of_result(results[i], setting.dtype)) +
                             tolerance.roundings * unit(setting.dtype);
    compare(got[i].tensor.to(Device::cpu), expected[i].tensor,
            tolerance.f32 * (setting.dtype == DType::f32 ? 1 : 4) + roundings);
  }
  cuda_emulator::set_order(Order::forward);
}

}  // namespace

void check_kernel(const std::string& name, const std::vector<Argument>& arguments,
                  const std::vector<Result>& results, const Call& call,
                  const Tolerance& tolerance) {
  bool adds = false;
  for (const Result& result : results) adds = adds || result.adds;
  std::vector<Setting> settings = {{DType::f32, Order::forward, false},
                                   {DType::f32, Order::reverse, true},
                                   {DType::f32, Order::random, false},
                                   {DType::bf16, Order::random, true},
                                   {DType::f16, Order::reverse, false}};
  for (size_t odd = 0; odd < arguments.size() + results.size(); ++odd)
    settings.push_back({DType::bf16, Order::forward, true, odd});
  for (const Setting& setting : settings) {
    INFO(name << " in " << setting.dtype << ", order " << static_cast<int>(setting.order)
              << (setting.accumulate && adds ? ", adding" : "")
              << (setting.odd < SIZE_MAX ? ", odd tensor " + std::to_string(setting.odd) : ""));
    check_setting(arguments, results, call, tolerance, setting);
  }
}

Tensor random_indices(int64_t n, int32_t below, uint64_t seed) {
  const Tensor x = uniform_tensor({n}, 0, below, seed), y = Tensor::empty({n}, DType::i32);
  for (int64_t i = 0; i < n; ++i) y.data<int32_t>()[i] = static_cast<int32_t>(x.data<double>()[i]);
  return y;
}

}  // namespace tapeformer
