#include "core/cpu/gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>

#include "core/check.h"
#include "core/cpu/gemm16.h"
#include "core/kernels.h"
#include "core/threads.h"

namespace tapeformer::cpu {
namespace {

// OpenMP's number of threads for the calling thread, while in scope. OpenBLAS's OpenMP build goes
// by it in every call, whatever openblas_set_num_threads() said, and changes it there.
class OpenMPThreads {
 public:
  explicit OpenMPThreads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~OpenMPThreads() { omp_set_num_threads(before_); }
  OpenMPThreads(const OpenMPThreads&) = delete;
  OpenMPThreads& operator=(const OpenMPThreads&) = delete;

 private:
  int before_;
};

// OpenBLAS takes a processor that is newer than itself for one of 2004, and its products are then
// four times slower. Where the processor can do more, it is made to choose again, by name, as
// OPENBLAS_CORETYPE would; whoever sets that variable keeps the choice. setenv() is not safe beside
// another thread's getenv(). Here it runs once in a process, under the guard of a static, before
// the first product, and only under such an old OpenBLAS; a program whose other threads may read
// the environment just then multiplies once before it starts them, or sets the variable itself.
void choose_newer_kernels() {
#if defined(__x86_64__)
  constexpr std::string_view without_avx2[] = {"Prescott", "Core2", "Nehalem", "Sandybridge"};
  if (std::getenv("OPENBLAS_CORETYPE") ||
      std::ranges::find(without_avx2, openblas_get_corename()) == std::end(without_avx2))
    return;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  using Function = void (*)();
  const auto quit = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "gotoblas_dynamic_quit"));
  const auto init = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "gotoblas_dynamic_init"));
  if (!avx2 || !quit || !init) return;
  setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 0);
  quit();
  init();
  unsetenv("OPENBLAS_CORETYPE");
#endif
}

bool set_up_openblas() {
  check(openblas_get_parallel() != 0,
        "matmul: this OpenBLAS is the serial build, which must not be called from several threads; "
        "install libopenblas-pthread-dev and libopenblas0-pthread (or the -openmp- packages)");
  choose_newer_kernels();
  const OpenMPThreads kept(1);
  openblas_set_num_threads(1);
  return true;
}

void blas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, const Gemm& g, const float* a,
               const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, ta, tb, g.m, g.n, g.k, static_cast<float>(g.alpha), a, g.lda, b, g.ldb,
              static_cast<float>(g.beta), c, g.ldc);
}
void blas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, const Gemm& g, const double* a,
               const double* b, double* c) {
  cblas_dgemm(CblasRowMajor, ta, tb, g.m, g.n, g.k, g.alpha, a, g.lda, b, g.ldb, g.beta, c, g.ldc);
}
void blas_gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, double alpha, const float* a,
               int64_t lda, const float* x, int64_t step_x, float* y, int64_t step_y) {
  cblas_sgemv(CblasRowMajor, t, rows, columns, static_cast<float>(alpha), a, lda, x, step_x, 1.0f,
              y, step_y);
}
void blas_gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, double alpha, const double* a,
               int64_t lda, const double* x, int64_t step_x, double* y, int64_t step_y) {
  cblas_dgemv(CblasRowMajor, t, rows, columns, alpha, a, lda, x, step_x, 1.0, y, step_y);
}

template <class T>
void scale_result(const Gemm& g, T* c) {
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j)
      c[i * g.ldc + j] = g.beta == 0 ? T(0) : static_cast<T>(g.beta) * c[i * g.ldc + j];
}

// One row or one column times a matrix: bound by reading the matrix, which gemm would copy first.
template <class T>
void gemv(const Gemm& g, const T* a, const T* b, T* c) {
  if (g.beta != 1) scale_result(g, c);
  const int64_t step_a = g.m == 1 && g.transpose_a ? g.lda : 1;
  const int64_t step_b = g.n == 1 && !g.transpose_b ? g.ldb : 1;
  if (g.m == 1 && g.transpose_b)
    blas_gemv(CblasNoTrans, g.n, g.k, g.alpha, b, g.ldb, a, step_a, c, 1);
  else if (g.m == 1)
    blas_gemv(CblasTrans, g.k, g.n, g.alpha, b, g.ldb, a, step_a, c, 1);
  else if (g.transpose_a)
    blas_gemv(CblasTrans, g.k, g.m, g.alpha, a, g.lda, b, step_b, c, g.ldc);
  else
    blas_gemv(CblasNoTrans, g.m, g.k, g.alpha, a, g.lda, b, step_b, c, g.ldc);
}

template <class T>
void call_gemm(const Gemm& g, const T* a, const T* b, T* c) {
  blas_gemm(g.transpose_a ? CblasTrans : CblasNoTrans, g.transpose_b ? CblasTrans : CblasNoTrans, g,
            a, b, c);
}

int64_t cut(int64_t size, int64_t pieces) {
  constexpr int64_t step = 16;  // what the innermost loops of the product handle at once
  return std::min(size, ((size + pieces - 1) / pieces + step - 1) / step * step);
}

// Multiply-adds. A thin product is bound by memory: its work is that of reading the matrix.
double work_of(int64_t m, int64_t n, int64_t k) {
  return double(std::max<int64_t>(m, 16)) * double(std::max<int64_t>(n, 16)) * double(k);
}
constexpr double parallel_work = 2e6;

}  // namespace

void prepare_gemm() { [[maybe_unused]] static const bool ready = set_up_openblas(); }

void check_gemm(const Gemm& g) {
  prepare_gemm();
  constexpr int64_t limit = std::numeric_limits<int>::max();
  const int64_t largest = std::max({g.k, g.lda, g.ldb, g.ldc});
  check(largest <= limit, "matmul: a dimension of ", largest, " is more than BLAS takes, ", limit);
}

template <std::floating_point T>
void gemm_serial(const Gemm& g, const T* a, const T* b, T* c) {
  prepare_gemm();
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) return scale_result(g, c);
  const OpenMPThreads one(1);
  if (g.m == 1 || g.n == 1) return gemv(g, a, b, c);
  call_gemm(g, a, b, c);
}

template <class T>
void gemm_whole(const Gemm& g, const T* a, const T* b, T* c, int threads) {
  check_gemm(g);
  const OpenMPThreads kept(threads);
  openblas_set_num_threads(threads);
  call_gemm(g, a, b, c);
  openblas_set_num_threads(1);
}

// The longer side is halved until a piece is at most `longest`: each tile packs its part of both
// matrices anew, so thin tiles pay, and tiles beyond that gain nothing. A product with much work in
// few pieces is halved further, for machines with more cores. The other side stays whole unless it
// is very long. The numbers were measured on the shapes of transformers.
Tiling tiling_of(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t longest = 576, longest_other = 1536, shortest = 256, enough_pieces = 8;
  constexpr double piece_work = 1e8;
  const double work = work_of(m, n, k);
  if (work < parallel_work) return {m, n, std::max<int64_t>(m, 1), std::max<int64_t>(n, 1)};
  const int64_t longer = std::max(m, n), other = std::min(m, n);
  int64_t pieces = 2;
  while (longer > longest * pieces || (pieces < enough_pieces && longer >= 2 * shortest * pieces &&
                                       work >= 2 * piece_work * pieces))
    pieces *= 2;
  int64_t other_pieces = 1;
  while (other > longest_other * other_pieces) other_pieces *= 2;
  const int64_t longer_cut = cut(longer, pieces), other_cut = cut(other, other_pieces);
  return m >= n ? Tiling{m, n, longer_cut, other_cut} : Tiling{m, n, other_cut, longer_cut};
}

bool worth_threads(int64_t batch, int64_t m, int64_t n, int64_t k) {
  return double(batch) * work_of(m, n, k) >= parallel_work;
}

template void gemm_serial(const Gemm&, const float*, const float*, float*);
template void gemm_serial(const Gemm&, const double*, const double*, double*);
template void gemm_whole(const Gemm&, const float*, const float*, float*, int);
template void gemm_whole(const Gemm&, const double*, const double*, double*, int);

}  // namespace tapeformer::cpu

namespace tapeformer::kernels::cpu {

using namespace tapeformer::cpu;

namespace {

// One product, or one for each matrix of a stack, over T matrices with results of type C.
template <class T, class C>
void multiply(const Gemm& g, int64_t batch, const Tensor& a, const Tensor& b, const Tensor& c) {
  check_gemm(g);
  const int64_t step_a = a.rank() == 2 ? 0 : a.dim(-2) * a.dim(-1);
  const int64_t step_b = b.rank() == 2 ? 0 : b.dim(-2) * b.dim(-1);
  const Tiling tiling = tiling_of(g.m, g.n, g.k);
  const int64_t tiles = tiling.count();
  parallel_for(batch * tiles, worth_threads(batch, g.m, g.n, g.k), [&](int64_t i) {
    const int64_t entry = i / tiles;
    gemm_tile(g, tiling[i % tiles], a.data<T>() + entry * step_a, b.data<T>() + entry * step_b,
              c.data<C>() + entry * g.m * g.n);
  });
}

}  // namespace

void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, double alpha,
            const Destination& c) {
  const Shape& shape = c.tensor.shape();
  Gemm g{shape[-2], shape[-1], a.dim(transpose_a ? -2 : -1), transpose_a, transpose_b};
  g.lda = std::max<int64_t>(a.dim(-1), 1);
  g.ldb = std::max<int64_t>(b.dim(-1), 1);
  g.ldc = std::max<int64_t>(g.n, 1);
  g.alpha = alpha;
  g.beta = c.accumulate ? 1 : 0;
  int64_t batch = shape.range(0, shape.rank() - 2).numel();
  if (b.rank() == 2 && !transpose_a) {  // the rows of all matrices of a are one tall matrix
    g.m *= batch;
    batch = 1;
  }
  dispatch_floating("matmul", a.dtype(), [&](auto type) {
    using T = decltype(type);
    if (c.tensor.dtype() == a.dtype()) return multiply<T, T>(g, batch, a, b, c.tensor);
    multiply<T, Wide<T>>(g, batch, a, b, c.tensor);
  });
}

}  // namespace tapeformer::kernels::cpu
