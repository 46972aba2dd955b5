// Products of bf16 matrices, in every way that this processor knows, against loops in double; and
// the conversion between float and bf16.
#include "core/cpu/gemm16.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/random.h"
#include "core/threads.h"
#include "tests/catch.h"

using namespace tapeformer;
using namespace tapeformer::cpu;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr bf16 marker = bf16::from_bits(0x7fc1);  // a NaN that no computation gives

std::vector<Bf16Way> ways() {
  std::vector<Bf16Way> result;
  for (const Bf16Way way : {Bf16Way::dot, Bf16Way::multiply_add, Bf16Way::convert})
    if (available(way)) result.push_back(way);
  return result;
}

// Memory of exactly n elements before a page that must not be touched: vector loads are seen too.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n)
      : page_(sysconf(_SC_PAGESIZE)), bytes_((n * sizeof(T) + page_ - 1) / page_ * page_ + page_) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    start_ = static_cast<char*>(memory);
    char* guard = start_ + bytes_ - page_;
    REQUIRE(mprotect(guard, page_, PROT_NONE) == 0);
    data_ = reinterpret_cast<T*>(guard) - n;
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(start_, bytes_); }
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  size_t page_, bytes_;
  char* start_;
  T* data_;
};

// A stored matrix. Between its rows lie NaN, which spoil whatever they get into.
struct Matrix {
  int64_t rows, columns, stride;
  Guarded<bf16> x;

  Matrix(int64_t rows_, int64_t columns_, int64_t gap, uint64_t seed)
      : rows(rows_), columns(columns_), stride(columns_ + gap), x(size()) {
    Generator generator({seed, Purpose::evaluation});
    for (int64_t i = 0; i < size(); ++i)
      x[i] = i % stride < columns ? bf16(static_cast<float>(2 * generator.uniform() - 1)) : marker;
  }
  int64_t size() const { return rows ? (rows - 1) * stride + columns : 0; }
  double at(int64_t i, int64_t j) const { return float(x[i * stride + j]); }
};

struct Case {
  Gemm g;
  Matrix a, b, c;

  Case(int64_t m, int64_t n, int64_t k, bool ta, bool tb, int64_t gap = 0)
      : g{m, n, k, ta, tb},
        a(ta ? k : m, ta ? m : k, gap, 1),
        b(tb ? n : k, tb ? k : n, 2 * gap, 2),
        c(m, n, 3 * gap, 3) {
    g.lda = std::max<int64_t>(a.stride, 1);
    g.ldb = std::max<int64_t>(b.stride, 1);
    g.ldc = std::max<int64_t>(c.stride, 1);
  }
  // What c should hold, in double.
  double exact(int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t l = 0; l < g.k; ++l)
      sum += (g.transpose_a ? a.at(l, i) : a.at(i, l)) * (g.transpose_b ? b.at(j, l) : b.at(l, j));
    return g.alpha * sum + (g.beta == 0 ? 0 : g.beta * c.at(i, j));
  }
};

float value(float x) { return x; }
float value(bf16 x) { return float(x); }

// `to` = c before the product.
template <class C>
void copy_result(const Matrix& c, const Guarded<C>& to) {
  for (int64_t i = 0; i < c.size(); ++i)
    if constexpr (std::is_same_v<C, float>)
      to[i] = float(c.x[i]);
    else
      to[i] = c.x[i];
}

// Whether the product lies within `tolerance` of the exact one, rounded to the type of c, and
// nothing between its rows was written.
template <class C>
void expect_product(const Case& t, const std::vector<double>& all_exact, Bf16Way way) {
  const Guarded<C> c(t.c.size()), before(t.c.size());
  copy_result(t.c, c);
  copy_result(t.c, before);
  gemm_serial(t.g, t.a.x.get(), t.b.x.get(), c.get(), way);
  double worst = 0;
  bool kept = true;
  for (int64_t at = 0; at < t.c.size(); ++at) {
    const int64_t i = at / t.c.stride, j = at % t.c.stride;
    if (j >= t.g.n) {
      kept = kept && std::memcmp(&c[at], &before[at], sizeof(C)) == 0;
      continue;
    }
    const double exact = all_exact[i * t.g.n + j];
    // Half a unit in the last of eight bits, and the error of a float sum of k terms below 1.
    const double allowed = (sizeof(C) == 2 ? 0x1p-8 * std::abs(exact) : 0) +
                           1e-6 * (1 + std::sqrt(static_cast<double>(t.g.k)));
    const double error = std::abs(value(c[at]) - exact) / allowed;
    worst = std::isnan(error) ? infinity : std::max(worst, error);
  }
  INFO("m " << t.g.m << ", n " << t.g.n << ", k " << t.g.k << ", transposed " << t.g.transpose_a
            << t.g.transpose_b << ", way " << static_cast<int>(way) << ", bytes " << sizeof(C));
  CHECK(worst <= 1);
  CHECK(kept);
}

void expect_product(const Case& t) {
  std::vector<double> exact;
  for (int64_t i = 0; i < t.g.m; ++i)
    for (int64_t j = 0; j < t.g.n; ++j) exact.push_back(t.exact(i, j));
  for (const Bf16Way way : ways()) {
    expect_product<float>(t, exact, way);
    expect_product<bf16>(t, exact, way);
  }
}

}  // namespace

TEST_CASE("float_to_bf16_rounds_to_the_nearest_and_ties_to_even") {
  // Between two neighbours lie 2^16 floats; the middle one goes to the even neighbour.
  int wrong = 0;
  const auto expect = [&](uint32_t bits, uint32_t rounded) {
    for (const uint32_t sign : {0u, 0x8000u})
      wrong += bf16(std::bit_cast<float>(bits | sign << 16)).bits != (rounded | sign);
  };
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    const uint32_t bits = upper << 16;
    expect(bits, upper);
    expect(bits + 0x7fff, upper);
    expect(bits + 0x8000, upper + upper % 2);
    expect(bits + 0x8001, upper + 1);
    wrong += float(bf16::from_bits(static_cast<uint16_t>(upper))) != std::bit_cast<float>(bits);
  }
  CHECK(wrong == 0);
  CHECK(bf16(infinity).bits == 0x7f80);
  CHECK(bf16(-infinity).bits == 0xff80);
  CHECK(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
}

TEST_CASE("every_nan_stays_a_nan_of_its_sign_in_bf16") {
  for (uint32_t fraction = 1; fraction < 0x800000; fraction = 3 * fraction + 1)
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const bf16 x = bf16(std::bit_cast<float>(sign | 0x7f800000u | fraction));
      CHECK(std::isnan(float(x)));
      CHECK((x.bits >> 15) == (sign >> 31));
    }
  CHECK(std::isnan(float(bf16(std::bit_cast<float>(0x7fffffffu)))));
}

TEST_CASE("bf16_products_of_every_shape_equal_the_plain_loops_and_stay_inside") {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      for (const int64_t m : {1, 4, 9, 14, 31})
        for (const int64_t n : {1, 16, 17, 33})
          for (const int64_t k : {1, 2, 31, 33}) expect_product(Case(m, n, k, ta, tb, 1));
      expect_product(Case(31, 257, 65, ta, tb));
      expect_product(Case(257, 31, 33, ta, tb, 3));
    }
}

TEST_CASE("long_bf16_sums_are_rounded_once") {
  // Several blocks of k, the last of them odd, and several of m.
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      expect_product(Case(3, 33, 769, ta, tb, 1));
      expect_product(Case(17, 5, 2501, ta, tb));
      expect_product(Case(603, 3, 385, ta, tb, 1));
    }
  // 257 ones: with every partial sum in bf16 they would end at 256.
  for (const Bf16Way way : ways()) {
    const int64_t k = 4097;
    const std::vector<bf16> ones(k, bf16(1));
    bf16 sum{};
    gemm_serial({1, 1, k, false, true, k, k, 1}, ones.data(), ones.data(), &sum, way);
    CHECK(float(sum) == 4096);
  }
}

TEST_CASE("bf16_products_scale_and_add_to_what_is_there") {
  for (const int64_t k : {0, 5, 1100})
    for (const double alpha : {1.0, -0.5, 0.0})
      for (const double beta : {0.0, 1.0, 2.5}) {
        Case t(19, 37, k, false, true, 1);
        t.g.alpha = alpha;
        t.g.beta = beta;
        expect_product(t);
      }
}

TEST_CASE("with_beta_zero_a_nan_in_c_does_not_matter_but_nan_and_infinity_in_a_do") {
  Case t(15, 33, 7, false, false);
  std::fill_n(t.c.x.get(), t.c.size(), marker);
  expect_product(t);
  t.a.x[2 * 7 + 6] = marker;        // row 2, the odd last k
  t.a.x[14 * 7] = bf16(-infinity);  // row 14, alone in its panel
  t.b.x[32] = bf16(1);              // and against it column 32
  for (const Bf16Way way : ways()) {
    std::vector<float> c(15 * 33);
    gemm_serial(t.g, t.a.x.get(), t.b.x.get(), c.data(), way);
    int wrong = 0;
    for (int64_t i = 0; i < 15; ++i)
      for (int64_t j = 0; j < 33; ++j) wrong += std::isnan(c[i * 33 + j]) != (i == 2);
    CHECK(wrong == 0);
    CHECK(c[14 * 33 + 32] == -infinity);
  }
}

TEST_CASE("empty_bf16_products_touch_nothing") {
  for (const Bf16Way way : ways()) {
    gemm_serial<float>({0, 5, 3, false, false, 3, 5, 5}, nullptr, nullptr, nullptr, way);
    gemm_serial<bf16>({5, 0, 3, false, false, 3, 1, 1}, nullptr, nullptr, nullptr, way);
  }
}

TEST_CASE("tiled_bf16_products_are_the_same_bits_on_any_number_of_threads") {
  const int before = num_threads();
  for (const Bf16Way way : ways()) {
    const Case t(1031, 257, 130, true, false, 1);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      std::vector<float> c(t.c.size(), 1.0f);
      std::vector<int> tiles(t.g.m);
      gemm_tiled(
          t.g, t.a.x.get(), t.b.x.get(), c.data(),
          [&](const Tile& tile) {
            for (int64_t i = tile.row; i < tile.row_end; ++i) ++tiles[i];
          },
          way);
      CHECK(std::ranges::count(tiles, 1) == t.g.m);  // each tile once, and when it was there
      results.push_back(c);
    }
    double worst = 0;
    for (int64_t i = 0; i < t.g.m; i += 103)
      for (int64_t j = 0; j < t.g.n; ++j)
        worst = std::max(worst, std::abs(results[0][i * t.g.ldc + j] - t.exact(i, j)));
    CHECK(worst < 2e-5);
    CHECK(std::memcmp(results[0].data(), results[1].data(), 4 * results[0].size()) == 0);
    CHECK(std::memcmp(results[0].data(), results[2].data(), 4 * results[0].size()) == 0);
  }
  set_num_threads(before);
}
