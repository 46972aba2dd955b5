// Operations that move elements: reshape, permute, slice, concat, stack.
#include <cmath>
#include <numeric>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/catch.h"
#include "tests/random_tensor.h"

using namespace tapeformer;

namespace {

using Inputs = std::vector<Tensor>;

Tensor counting(const Shape& shape) {
  std::vector<float> values(shape.numel());
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, shape);
}

// y[i0, i1, ..] = x with index order[d] = i_d, in the plainest way.
std::vector<float> plain_permute(const Tensor& x, const std::vector<int>& order) {
  std::vector<float> result;
  for (int64_t i = 0; i < x.numel(); ++i) {
    std::vector<int64_t> index(x.rank());
    int64_t rest = i;
    for (int d = x.rank() - 1; d >= 0; --d) {
      index[order[d]] = rest % x.dim(order[d]);
      rest /= x.dim(order[d]);
    }
    int64_t offset = 0;
    for (int d = 0; d < x.rank(); ++d) offset = offset * x.dim(d) + index[d];
    result.push_back(x.data<float>()[offset]);
  }
  return result;
}

}  // namespace

TEST_CASE("permute_agrees_with_the_definition_in_every_order") {
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{1, 33, 1, 31}, Shape{40, 2, 50, 3}}) {
    const Tensor x = counting(shape);
    std::vector<int> order{0, 1, 2, 3};
    do {
      REQUIRE(permute(x, order).to_vector<float>() == plain_permute(x, order));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  CHECK(permute(Tensor::full({}, 3), {}).item() == 3);
  CHECK(permute(Tensor::zeros({2, 0}), {1, 0}).shape() == Shape{0, 2});
  const Tensor six = counting({2, 3, 2, 3, 2, 3});
  CHECK(permute(six, {5, 1, 3, 0, 4, 2}).to_vector<float>() ==
        plain_permute(six, {5, 1, 3, 0, 4, 2}));
}

TEST_CASE("transpose_swaps_two_dimensions_and_twice_is_the_identity") {
  const Tensor x = counting({3, 65, 70}), y = transpose(x, -1, 1);
  CHECK(y.shape() == Shape{3, 70, 65});
  CHECK(y.data<float>()[1 * 70 * 65 + 2 * 65 + 5] == x.data<float>()[1 * 65 * 70 + 5 * 70 + 2]);
  CHECK(transpose(y, 1, 2).to_vector<float>() == x.to_vector<float>());
}

TEST_CASE("reshape_shares_memory_and_works_out_one_size") {
  const Tensor x = counting({2, 6}), y = reshape(x, {3, -1});
  CHECK(y.shape() == Shape{3, 4});
  CHECK(y.raw() == x.raw());
  CHECK(reshape(x, {2, -1}).is(x));
}

TEST_CASE("slices_read_their_range") {
  const Tensor x = counting({2, 3, 4});
  CHECK(slice(x, 0, 1, 2).to_vector<float>() ==
        std::vector<float>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(slice(x, 0, 1, 2).raw() == x.data<float>() + 12);
  CHECK(slice(x, 1, 1, 2).to_vector<float>() == std::vector<float>{4, 5, 6, 7, 16, 17, 18, 19});
  CHECK(slice(x, -1, 3, 4).to_vector<float>() == std::vector<float>{3, 7, 11, 15, 19, 23});
  CHECK(slice(x, 1, 2, 2).shape() == Shape{2, 0, 4});
}

TEST_CASE("concat_undoes_slices_along_every_dimension") {
  const Tensor x = counting({3, 40, 301});
  for (int dim = -3; dim < 3; ++dim) {
    const int64_t size = x.dim(dim);
    const Tensor joined = concat({slice(x, dim, 0, 1), slice(x, dim, 1, size - 1),
                                  slice(x, dim, size - 1, size), slice(x, dim, 0, 0)},
                                 dim);
    REQUIRE(joined.shape() == x.shape());
    REQUIRE(joined.to_vector<float>() == x.to_vector<float>());
  }
}

TEST_CASE("stack_adds_a_dimension_anywhere") {
  const Tensor a = Tensor::from<float>({1, 2}), b = Tensor::from<float>({3, 4});
  CHECK(stack({a, b}).to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  CHECK(stack({a, b}, 1).to_vector<float>() == std::vector<float>{1, 3, 2, 4});
  CHECK(stack({a, b}, -1).shape() == Shape{2, 2});
  CHECK(stack({sum(a), sum(b)}).to_vector<float>() == std::vector<float>{3, 7});
}

TEST_CASE("integers_move_like_numbers") {
  const Tensor x = Tensor::from<int32_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(transpose(x, 0, 1).to_vector<int32_t>() == std::vector<int32_t>{1, 4, 2, 5, 3, 6});
  CHECK(slice(x, 1, 1, 3).to_vector<int32_t>() == std::vector<int32_t>{2, 3, 5, 6});
  CHECK(concat({x, x}, 0).shape() == Shape{4, 3});
}

TEST_CASE("shape_gradients") {
  for (const int64_t n : {1, 31, 33}) {
    const Tensor x = random_tensor({2, n, 3}, n), y = random_tensor({2, 4, 3}, 2);
    CHECK(gradcheck([n](const Inputs& in) { return reshape(in[0], {n, 6}); }, {x}));
    CHECK(gradcheck([](const Inputs& in) { return permute(in[0], {2, 0, 1}); }, {x}));
    CHECK(gradcheck([](const Inputs& in) { return transpose(in[0], 0, 1) * 2.0; }, {x}));
    CHECK(gradcheck([n](const Inputs& in) { return slice(in[0], 1, n / 2, n); }, {x}));
    CHECK(gradcheck([](const Inputs& in) { return slice(in[0], 0, 1, 2); }, {x}));
    CHECK(gradcheck([](const Inputs& in) { return concat({in[0], in[1], in[0]}, 1); }, {x, y}));
    CHECK(gradcheck([](const Inputs& in) { return stack({in[0], in[0] * in[0]}, 2); }, {x}));
  }
}

TEST_CASE("overlapping_slices_add_their_gradients_and_the_rest_gets_zero") {
  const Tensor x = requires_gradient(Tensor::zeros({2, 5}));
  Tape tape;
  tape.backward(sum(slice(x, 1, 1, 3)) + sum(slice(x, 1, 2, 4)) * 10.0);
  CHECK(gradient(x).to_vector<float>() == std::vector<float>{0, 1, 11, 10, 0, 0, 1, 11, 10, 0});
  CHECK(gradcheck(
      [](const Inputs& in) {
        return slice(in[0], 0, 0, 3) * slice(in[0], 0, 1, 4) + slice(in[0], 0, 2, 5) * in[1];
      },
      {random_tensor({5, 3}, 1), random_tensor({3, 3}, 2)}));
}

TEST_CASE("the_gradient_of_a_slice_overwrites_what_was_there_and_adds_where_it_should") {
  const Shape shape{3, 4, 5};
  for (int dim = 0; dim < 3; ++dim)
    for (int64_t begin = 0; begin <= shape[dim]; ++begin)
      for (int64_t end = begin; end <= shape[dim]; ++end) {
        const Tensor dy = random_tensor(shape.with(dim, end - begin), 1);
        const Tensor fresh = Tensor::full(shape, NAN, DType::f64);
        const Tensor added = Tensor::full(shape, 1, DType::f64);
        kernels::slice_backward(dy, dim, begin, Destination{fresh});
        kernels::slice_backward(dy, dim, begin, Destination{added, true});
        const Tensor before = Tensor::zeros(shape.with(dim, begin), DType::f64);
        const Tensor after = Tensor::zeros(shape.with(dim, shape[dim] - end), DType::f64);
        const Tensor expected = concat({before, dy, after}, dim);
        REQUIRE(fresh.to_vector<double>() == expected.to_vector<double>());
        REQUIRE(added.to_vector<double>() == (expected + 1.0).to_vector<double>());
      }
}

TEST_CASE("gradient_passed_through_reshape_is_not_overwritten_by_others") {
  // One gradient buffer travels through reshape and add to three places; each must see its own sum.
  CHECK(gradcheck(
      [](const Inputs& in) {
        const Tensor y = reshape(in[0] * in[0], {6});
        const Tensor z = y + reshape(in[1], {6});
        return z + y * z + reshape(reshape(z, {3, 2}), {6});
      },
      {random_tensor({2, 3}, 1), random_tensor({3, 2}, 2)}));
}

TEST_CASE("shape_mistakes_are_explained") {
  const Tensor x = Tensor::zeros({2, 3});
  CHECK_THROWS_WITH(reshape(x, Shape{4, 2}),
                    ContainsSubstring("reshape: 6 elements of shape [2, 3] do not fill shape [4, "
                                      "2]"));
  CHECK_THROWS_WITH(reshape(x, {-1, 4}),
                    ContainsSubstring("reshape: 6 elements cannot be divided among [-1, 4]"));
  CHECK_THROWS_WITH(permute(x, {0, 0}),
                    ContainsSubstring("permute: the order [0, 0] does not name each dimension of "
                                      "[2, 3] once"));
  CHECK_THROWS_WITH(permute(x, {0}), ContainsSubstring("permute: the order [0]"));
  CHECK_THROWS_WITH(permute(x, {0, -1}), ContainsSubstring("permute: the order [0, -1]"));
  CHECK_THROWS_WITH(transpose(x, 0, 2),
                    ContainsSubstring("transpose: shape [2, 3] has no dimension 2"));
  CHECK_THROWS_WITH(slice(x, 1, 2, 4),
                    ContainsSubstring("slice: [2, 4) is no range of dimension 1 of shape [2, 3]"));
  CHECK_THROWS_WITH(slice(x, 1, 2, 1), ContainsSubstring("slice: [2, 1) is no range"));
  CHECK_THROWS_WITH(concat({}, 0), ContainsSubstring("concat: needs at least one tensor"));
  CHECK_THROWS_WITH(concat({x, Tensor::zeros({3, 2})}, 1),
                    ContainsSubstring("concat: shapes differ beyond dimension 1: [2, 3] and [3, "
                                      "2]"));
  CHECK_THROWS_WITH(concat({x, Tensor::zeros({2, 3}, DType::f64)}, 0),
                    ContainsSubstring("concat: dtypes differ: the first is f32, another is f64"));
  CHECK_THROWS_WITH(stack({x, Tensor::zeros({3})}),
                    ContainsSubstring("stack: shapes differ: [2, 3] and [3]"));
  CHECK_THROWS_WITH(stack({x}, 3), ContainsSubstring("takes a new dimension at 0 to 2, got 3"));
}
