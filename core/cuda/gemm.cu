// Matrix products by cuBLASLt, the only file that knows it.
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "core/cuda/backend.h"
#include "core/cuda/cublas.h"
#include "core/cuda/gemm.cuh"

namespace tapeformer::cuda {
namespace cublas {

#ifdef TAPEFORMER_CUDA_EMULATED
#define TAPEFORMER_CUBLAS_DECLARE(name, parameters) extern "C" int name parameters;
TAPEFORMER_CUBLAS_FUNCTIONS(TAPEFORMER_CUBLAS_DECLARE)
#undef TAPEFORMER_CUBLAS_DECLARE
#endif

struct Library {
#define TAPEFORMER_CUBLAS_POINTER(name, parameters) int(*name) parameters = nullptr;
  TAPEFORMER_CUBLAS_FUNCTIONS(TAPEFORMER_CUBLAS_POINTER)
#undef TAPEFORMER_CUBLAS_POINTER

  Library() {
#ifdef TAPEFORMER_CUDA_EMULATED
#define TAPEFORMER_CUBLAS_FIND(name, parameters) name = &cublas::name;
#else
    const std::string file = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
    void* library = nullptr;
    for (const std::string& folder : {std::string(), std::string("/usr/local/cuda/lib64/")})
      if (!library) library = dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library, "cuda: ", file, " cannot be loaded (", library ? "" : dlerror(),
          "); install cuBLAS of this CUDA version, or add its folder to LD_LIBRARY_PATH");
#define TAPEFORMER_CUBLAS_FIND(name, parameters)                  \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  check(name, "cuda: ", file, " lacks " #name);
#endif
    TAPEFORMER_CUBLAS_FUNCTIONS(TAPEFORMER_CUBLAS_FIND)
#undef TAPEFORMER_CUBLAS_FIND
  }
};

}  // namespace cublas

namespace {

using namespace cublas;

// So much that a sum may be cut among all processors also where the product is small and the sum is
// long, as in the gradients of weights.
constexpr size_t workspace_bytes = size_t{64} << 20;

const Library& library() {
  static const Library library;
  return library;
}

void check_cublas(int status, const char* call) {
  check(status == success, "cuda: ", call, " failed with cuBLAS status ", status);
}

int type_of(DType dtype) {
  return dtype == DType::f32 ? real_f32 : dtype == DType::bf16 ? real_bf16 : real_f16;
}

// A description that the library made; freed with it.
template <int (*Library::*destroy)(void*)>
struct Description {
  Description() = default;
  Description(const Description&) = delete;
  ~Description() {
    if (data) (library().*destroy)(data);
  }
  void* data = nullptr;
};
using Layout = Description<&Library::cublasLtMatrixLayoutDestroy>;

template <class T>
void set(int (*function)(void*, int, const void*, size_t), void* description, int attribute,
         const T& value) {
  check_cublas(function(description, attribute, &value, sizeof value), "an attribute of a product");
}

// A row-major matrix is, to the library, its transpose: `columns` rows.
void describe(Layout& layout, DType dtype, int64_t rows, int64_t columns, int64_t ld, const Gemm& g,
              int64_t step) {
  check_cublas(library().cublasLtMatrixLayoutCreate(&layout.data, type_of(dtype),
                                                    static_cast<uint64_t>(columns),
                                                    static_cast<uint64_t>(rows), ld),
               "cublasLtMatrixLayoutCreate");
  if (g.batch == 1) return;
  const auto set_layout = library().cublasLtMatrixLayoutSetAttribute;
  set(set_layout, layout.data, layout_batch_count, static_cast<int32_t>(g.batch));
  set(set_layout, layout.data, layout_batch_offset, step);
}

// The largest power of two, at most 256, that divides where matrices begin which lie `step` apart.
uint32_t alignment_of(const Tensor& matrices, int64_t step) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(matrices.raw()) |
                            static_cast<uintptr_t>(step) * size_of(matrices.dtype());
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

// What the choice of an algorithm depends on. Of no bias the alignment is 0.
struct Key {
  GemmShape shape;
  DType dtype, result;
  uint32_t alignment_a, alignment_b, alignment_c, alignment_bias;
  auto operator<=>(const Key&) const = default;
};

// The handle, its workspace and the algorithms that were chosen so far.
struct Context {
  Context() {
    check_cublas(library().cublasLtCreate(&handle), "cublasLtCreate");
    workspace = allocate(workspace_bytes);
    check(workspace, "out of memory: the GPU lacks 64 MB for matrix products; lower the batch");
  }
  Handle handle = nullptr;
  void* workspace;
  std::mutex mutex;
  std::map<Key, Algorithm> algorithms;
};

Context& context() {
  static auto* const context = new Context;
  return *context;
}

// The best algorithm for a product, which to the library is that of its b and its a.
Algorithm choose(const Key& key, void* product, const Layout& a, const Layout& b, const Layout& c) {
  Description<&Library::cublasLtMatmulPreferenceDestroy> preference;
  check_cublas(library().cublasLtMatmulPreferenceCreate(&preference.data),
               "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](int attribute, const auto& value) {
    set(library().cublasLtMatmulPreferenceSetAttribute, preference.data, attribute, value);
  };
  prefer(preference_workspace, workspace_bytes);
  prefer(preference_reduction, reduction_in_compute_type);
  prefer(preference_alignment_a, key.alignment_b);
  prefer(preference_alignment_a + 1, key.alignment_a);
  prefer(preference_alignment_a + 2, key.alignment_c);
  prefer(preference_alignment_a + 3, key.alignment_c);
  Heuristic best{};
  int found = 0;
  const GemmShape& shape = key.shape;
  const int status = library().cublasLtMatmulAlgoGetHeuristic(
      context().handle, product, b.data, a.data, c.data, c.data, preference.data, 1, &best, &found);
  check(status == success && found > 0, "cuda: cuBLAS knows no way to multiply ",
        shape.transpose_a ? "transposed " : "", "[", shape.m, ", ", shape.k, "] by ",
        shape.transpose_b ? "transposed " : "", "[", shape.k, ", ", shape.n, "], ", shape.batch,
        " of them, in ", key.dtype, " to ", key.result, " at multiples of ", key.alignment_a, ", ",
        key.alignment_b, " and ", key.alignment_c, " bytes (status ", status, ")");
  return best.algorithm;
}

}  // namespace

// Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T: b comes first.
void gemm(const Gemm& g, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  const Library& lib = library();
  Description<&Library::cublasLtMatmulDescDestroy> product;
  check_cublas(lib.cublasLtMatmulDescCreate(&product.data, compute_f32, real_f32),
               "cublasLtMatmulDescCreate");
  const auto set_product = lib.cublasLtMatmulDescSetAttribute;
  set(set_product, product.data, desc_transpose_a, g.transpose_b ? transposed : not_transposed);
  set(set_product, product.data, desc_transpose_b, g.transpose_a ? transposed : not_transposed);
  if (g.bias.defined()) {
    set(set_product, product.data, desc_epilogue, epilogue_bias);
    set(set_product, product.data, desc_bias, static_cast<const void*>(g.bias.raw()));
  }
  Layout layout_a, layout_b, layout_c;
  describe(layout_b, b.dtype(), g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb, g,
           g.b_step);
  describe(layout_a, a.dtype(), g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda, g,
           g.a_step);
  describe(layout_c, c.dtype(), g.m, g.n, g.ldc, g, g.c_step);
  const Key key{g,
                a.dtype(),
                c.dtype(),
                alignment_of(a, g.a_step),
                alignment_of(b, g.b_step),
                alignment_of(c, g.c_step),
                g.bias.defined() ? alignment_of(g.bias, 0) : 0};
  Context& use = context();
  const std::lock_guard lock(use.mutex);
  auto algorithm = use.algorithms.find(key);
  if (algorithm == use.algorithms.end())
    algorithm =
        use.algorithms.emplace(key, choose(key, product.data, layout_a, layout_b, layout_c)).first;
  check_cublas(
      lib.cublasLtMatmul(use.handle, product.data, &g.alpha, b.raw(), layout_b.data, a.raw(),
                         layout_a.data, &g.beta, c.raw(), layout_c.data, c.raw(), layout_c.data,
                         &algorithm->second, use.workspace, workspace_bytes, stream()),
      "cublasLtMatmul");
}

}  // namespace tapeformer::cuda

namespace tapeformer::kernels::cuda {

using namespace tapeformer::cuda;

void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, double alpha,
            const Destination& c) {
  dispatch("matmul", a.dtype(), [](auto) {});
  const Shape& shape = c.tensor.shape();
  const int64_t batch = shape.range(0, shape.rank() - 2).numel();
  Gemm g{{shape[-2], shape[-1], a.dim(transpose_a ? -2 : -1), transpose_a, transpose_b,
          std::max<int64_t>(a.dim(-1), 1), std::max<int64_t>(b.dim(-1), 1),
          std::max<int64_t>(shape[-1], 1)}};
  g.alpha = static_cast<float>(alpha);
  g.beta = c.accumulate ? 1 : 0;
  if (g.k == 0) {
    if (!c.accumulate) fill(c.tensor, 0);
    return;
  }
  if (b.rank() == 2 && !transpose_a) {  // the rows of all matrices of a are one tall matrix
    g.m *= batch;
  } else {
    g.batch = batch;
    g.a_step = a.rank() == 2 ? 0 : a.dim(-2) * a.dim(-1);
    g.b_step = b.rank() == 2 ? 0 : b.dim(-2) * b.dim(-1);
    g.c_step = g.m * g.n;
  }
  gemm(g, a, b, c.tensor);
}

}  // namespace tapeformer::kernels::cuda
