// Tensors, shapes, memory, and the mistakes one can make with them.
#include "core/tensor.h"

#include <cstdint>
#include <limits>

#include "autograd/tape.h"
#include "tests/catch.h"

using namespace tapeformer;

TEST_CASE("shape_counts_elements_and_indexes_from_both_ends") {
  const Shape shape{2, 3, 4};
  CHECK(shape.rank() == 3);
  CHECK(shape.numel() == 24);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 4);
  CHECK(shape.with(-2, 7) == Shape{2, 7, 4});
  CHECK(shape.range(1, 3) == Shape{3, 4});
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{3, 0}.numel() == 0);
  CHECK_FALSE(Shape{2, 3} == Shape{3, 2});
  CHECK_FALSE(Shape{1} == Shape{});
}

TEST_CASE("shape_refuses_what_cannot_be") {
  CHECK_THROWS_WITH((Shape{1, 1, 1, 1, 1, 1, 1}), ContainsSubstring("at most 6 dimensions"));
  CHECK_THROWS_WITH((Shape{2, -1}), ContainsSubstring("must not be negative, got -1"));
  CHECK_THROWS_WITH((Shape{int64_t{1} << 40, int64_t{1} << 40}),
                    ContainsSubstring("too many elements"));
  CHECK_THROWS_WITH((Shape{2, 3}[2]), ContainsSubstring("shape [2, 3] has no dimension 2"));
  CHECK_THROWS_WITH((Shape{2, 3}[-3]), ContainsSubstring("has no dimension -3"));
}

TEST_CASE("broadcast_shapes_follow_numpy") {
  const auto joined = [](const Shape& a, const Shape& b) { return broadcast_shapes("add", a, b); };
  CHECK(joined({2, 3, 4}, {4}) == Shape{2, 3, 4});
  CHECK(joined({2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(joined({}, {5}) == Shape{5});
  CHECK(joined({0, 3}, {1, 3}) == Shape{0, 3});
  CHECK_THROWS_WITH(joined({2, 3}, {2}),
                    ContainsSubstring("add: shapes do not broadcast: [2, 3] and [2]"));
}

TEST_CASE("tensor_holds_what_it_was_given") {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(x.bytes() == 24);
  CHECK(Tensor::full({3}, 2.5, DType::f64).to_vector<double>() == std::vector<double>(3, 2.5));
  CHECK(Tensor::zeros({4}, DType::i32).to_vector<int32_t>() == std::vector<int32_t>(4, 0));
  CHECK(Tensor::full({}, 7).item() == 7);
  CHECK(Tensor::full({1, 1}, -3, DType::i32).item() == -3);
  CHECK_FALSE(Tensor{}.defined());
}

TEST_CASE("tensor_mistakes_are_explained") {
  const Tensor x = Tensor::zeros({2, 3});
  CHECK_THROWS_WITH(Tensor::from<float>({1, 2}, {3}),
                    ContainsSubstring("tensor: 2 values do not fill shape [3]"));
  CHECK_THROWS_WITH(x.data<double>(), ContainsSubstring("a tensor of f32 was read as f64"));
  CHECK_THROWS_WITH(x.item(),
                    ContainsSubstring("item: needs a tensor with one element, got shape [2, 3]"));
  CHECK_THROWS_WITH(Tensor{}.shape(), ContainsSubstring("undefined tensor"));
  CHECK_THROWS_WITH(x.view({4, 2}), ContainsSubstring("view: 6 elements do not fill shape [4, 2]"));
  CHECK_THROWS_WITH(x.view({-1, 4}), ContainsSubstring("6 elements cannot be divided among"));
  CHECK_THROWS_WITH(x.view({-1, -1}), ContainsSubstring("only one size may be -1"));
  CHECK_THROWS_WITH(x.rows(1, 3), ContainsSubstring("rows: [1, 3) is no range"));
  CHECK_THROWS_WITH(x.copy_from(Tensor::zeros({3, 2})),
                    ContainsSubstring("copy_from: shapes differ: [2, 3] from [3, 2]"));
}

TEST_CASE("views_share_memory_and_clones_do_not") {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor view = x.view({-1}), rows = x.rows(1, 2), copy = x.clone();
  CHECK(view.shape() == Shape{6});
  CHECK(rows.to_vector<float>() == std::vector<float>{3, 4});
  rows.fill(9);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 9, 9, 5, 6});
  CHECK(view.to_vector<float>()[2] == 9);
  CHECK(copy.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(Tensor::zeros({0, 4}).rows(0, 0).numel() == 0);
}

TEST_CASE("handles_share_a_body_and_see_it_move") {
  const Tensor x = Tensor::from<float>({1, 2}), handle = x, stranger = x.detach();
  const Tensor flat = Tensor::from<float>({5, 6, 7, 8});
  CHECK(x.is(handle));
  CHECK_FALSE(x.is(stranger));
  x.rebase(flat.storage(), 2);
  CHECK(handle.to_vector<float>() == std::vector<float>{7, 8});
  CHECK(stranger.to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("unique_means_that_nobody_else_sees_the_memory") {
  Tensor x = Tensor::zeros({4});
  CHECK(x.unique());
  {
    const Tensor handle = x;
    CHECK_FALSE(x.unique());
  }
  CHECK(x.unique());
  const Tensor view = x.view({2, 2});
  CHECK_FALSE(x.unique());
}

TEST_CASE("views_refuse_to_lose_a_gradient") {
  const Tensor x = requires_gradient(Tensor::zeros({2, 3}));
  CHECK_THROWS_WITH(x.view({6}), ContainsSubstring("use reshape(x, shape), or detach()"));
  CHECK_THROWS_WITH(x.rows(0, 1), ContainsSubstring("use slice(x, 0, begin, end), or detach()"));
  CHECK(x.detach().view({6}).numel() == 6);
  CHECK_FALSE(needs_gradient(x.detach()));
  CHECK_FALSE(needs_gradient(x.clone()));
}

TEST_CASE("copy_converts_between_dtypes") {
  const Tensor x = Tensor::from<float>({1.75f, -2.75f, 3});
  const Tensor integers = Tensor::empty({3}, DType::i32), doubles = Tensor::empty({3}, DType::f64);
  integers.copy_from(x);
  doubles.copy_from(x);
  CHECK(integers.to_vector<int32_t>() == std::vector<int32_t>{1, -2, 3});
  CHECK(doubles.to_vector<double>() == std::vector<double>{1.75, -2.75, 3});
}

TEST_CASE("memory_is_aligned_and_counted") {
  const size_t before = memory_stats().live_bytes;
  {
    const Tensor x = Tensor::empty({1000});
    CHECK(reinterpret_cast<uintptr_t>(x.raw()) % 64 == 0);
    CHECK(memory_stats().live_bytes >= before + 4000);
    const Tensor large = Tensor::empty({1 << 20});
    CHECK(reinterpret_cast<uintptr_t>(large.raw()) % (2 << 20) == 0);
    reset_peak_memory();
  }
  CHECK(memory_stats().live_bytes == before);
  CHECK(memory_stats().peak_bytes >= before + (4 << 20));
}

TEST_CASE("freed_memory_serves_the_next_request") {
  const auto touch = [] {
    for (const int64_t n : {3, 1000, 70000, 1 << 20}) Tensor::zeros({n});
  };
  touch();
  const size_t asked = memory_stats().system_requests;
  for (int step = 0; step < 3; ++step) touch();
  CHECK(memory_stats().system_requests == asked);
}

TEST_CASE("memory_that_nobody_has_is_refused_with_both_numbers") {
  CHECK_THROWS_WITH(Tensor::empty({int64_t{1} << 50}), ContainsSubstring("out of memory: asked for "
                                                                         "4503599627370496 bytes"));
  CHECK_THROWS_WITH(Tensor::empty({std::numeric_limits<int64_t>::max()}),
                    ContainsSubstring("exceeds the address space"));
}
