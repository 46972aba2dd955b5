// cuBLASLt on CBLAS: computes what the real library would, and first checks what it would trust:
// shapes that fit, leading dimensions, buffers that are long enough, alignments that were promised.
#include "core/cuda/cublas.h"

#include <cblas.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <vector>

#include "cuda_emulator/emulator.h"
#include "cuda_emulator/report.h"

namespace {

using namespace tapeformer::cuda::cublas;
using cuda_emulator::fault;

struct Product {
  int compute_type, scale_type;
  int32_t transpose_a = not_transposed, transpose_b = not_transposed;
  uint32_t epilogue = epilogue_none;
  const void* bias = nullptr;
};

// Column-major: `columns` columns of `rows` numbers, `ld` apart.
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t step = 0;
};

struct Wish {
  size_t workspace = 0;
  uint32_t reductions = ~0u;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

// What a heuristic found, stored in the opaque algorithm.
struct Choice {
  uint32_t alignment[4];
  uint64_t mark;
};
constexpr uint64_t mark = 0x7461706566;

size_t size_of(int type) { return type == real_f32 ? 4 : 2; }

float read(const void* data, int type, size_t i) {
  if (type == real_f32) return static_cast<const float*>(data)[i];
  if (type == real_bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  return __half2float(static_cast<const __half*>(data)[i]);
}

void write(void* data, int type, size_t i, float value) {
  if (type == real_f32)
    static_cast<float*>(data)[i] = value;
  else if (type == real_bf16)
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(data)[i] = __float2half_rn(value);
}

template <class T>
T read_attribute(const void* value, size_t size) {
  if (size != sizeof(T)) fault("cuBLAS: an attribute of %zu bytes, given %zu", sizeof(T), size);
  return *static_cast<const T*>(value);
}

void check_matrix(const char* name, const Layout& layout, const void* data, uint32_t alignment) {
  if (layout.ld < static_cast<int64_t>(layout.rows))
    fault("cuBLAS: matrix %s has %llu rows and a leading dimension of %lld", name,
          static_cast<unsigned long long>(layout.rows), static_cast<long long>(layout.ld));
  if (reinterpret_cast<uintptr_t>(data) % alignment)
    fault("cuBLAS: matrix %s at %p, promised to be a multiple of %u", name, data, alignment);
  if (layout.batch > 1 && layout.step * static_cast<int64_t>(size_of(layout.type)) % alignment)
    fault("cuBLAS: matrix %s: later ones of the batch break the promised alignment of %u", name,
          alignment);
  const uint64_t last = (layout.columns - 1) * layout.ld + layout.rows;
  const uint64_t all = static_cast<uint64_t>(layout.batch - 1) * layout.step + last;
  cuda_emulator::check_device_range("cuBLAS, a matrix", data, all * size_of(layout.type));
}

struct Shape {
  uint64_t m, n, k;
};

Shape check_shapes(const Product& product, const Layout& a, const Layout& b, const Layout& c,
                   const Layout& d) {
  const bool ta = product.transpose_a == transposed, tb = product.transpose_b == transposed;
  const Shape shape{ta ? a.columns : a.rows, tb ? b.rows : b.columns, ta ? a.rows : a.columns};
  const uint64_t b_k = tb ? b.columns : b.rows;
  if (shape.k != b_k || shape.m != d.rows || shape.n != d.columns || c.rows != d.rows ||
      c.columns != d.columns)
    fault("cuBLAS: op(A) [%llu, %llu] op(B) [%llu, %llu] does not give D [%llu, %llu]",
          static_cast<unsigned long long>(shape.m), static_cast<unsigned long long>(shape.k),
          static_cast<unsigned long long>(b_k), static_cast<unsigned long long>(shape.n),
          static_cast<unsigned long long>(d.rows), static_cast<unsigned long long>(d.columns));
  if (a.type != b.type || c.type != d.type || (c.type != a.type && c.type != real_f32))
    fault("cuBLAS: no product of these types: A %d, B %d, C %d, D %d", a.type, b.type, c.type,
          d.type);
  if (a.batch != d.batch || b.batch != d.batch) fault("cuBLAS: batch counts differ");
  if (shape.m * shape.n * shape.k == 0) fault("cuBLAS: a product without elements");
  return shape;
}

std::vector<float> floats(const Layout& layout, const void* data, int32_t entry) {
  std::vector<float> values(static_cast<size_t>(layout.ld) * layout.columns);
  for (uint64_t column = 0; column < layout.columns; ++column)
    for (uint64_t row = 0; row < layout.rows; ++row) {
      const size_t at = column * layout.ld + row;
      values[at] = read(data, layout.type, static_cast<size_t>(entry * layout.step) + at);
    }
  return values;
}

// One entry of D = alpha op(A) op(B) + beta C + bias.
void multiply(const Product& product, const Shape& shape, float alpha, float beta, const Layout& a,
              const void* a_data, const Layout& b, const void* b_data, const Layout& d,
              void* d_data, int32_t entry) {
  const std::vector<float> left = floats(a, a_data, entry), right = floats(b, b_data, entry);
  std::vector<float> result(d.rows * d.columns);
  const auto size = [](uint64_t n) { return static_cast<int>(n); };
  cblas_sgemm(CblasColMajor, product.transpose_a ? CblasTrans : CblasNoTrans,
              product.transpose_b ? CblasTrans : CblasNoTrans, size(shape.m), size(shape.n),
              size(shape.k), alpha, left.data(), size(a.ld), right.data(), size(b.ld), 0,
              result.data(), size(d.rows));
  for (uint64_t column = 0; column < d.columns; ++column)
    for (uint64_t row = 0; row < d.rows; ++row) {
      const size_t at = static_cast<size_t>(entry * d.step) + column * d.ld + row;
      float value = result[column * d.rows + row];
      if (beta != 0) value += beta * read(d_data, d.type, at);
      if (product.epilogue == epilogue_bias) value += read(product.bias, d.type, row);
      write(d_data, d.type, at, value);
    }
}

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) {
  *handle = new int;
  return success;
}

int cublasLtMatmulDescCreate(void** product, int compute_type, int scale_type) {
  if (compute_type != compute_f32 || scale_type != real_f32)
    fault("cuBLAS: compute type %d with scale type %d is not emulated", compute_type, scale_type);
  *product = new Product{compute_type, scale_type};
  return success;
}
int cublasLtMatmulDescDestroy(void* product) {
  delete static_cast<Product*>(product);
  return success;
}
int cublasLtMatmulDescSetAttribute(void* description, int attribute, const void* value,
                                   size_t size) {
  auto& product = *static_cast<Product*>(description);
  if (attribute == desc_transpose_a)
    product.transpose_a = read_attribute<int32_t>(value, size);
  else if (attribute == desc_transpose_b)
    product.transpose_b = read_attribute<int32_t>(value, size);
  else if (attribute == desc_epilogue)
    product.epilogue = read_attribute<uint32_t>(value, size);
  else if (attribute == desc_bias)
    product.bias = read_attribute<const void*>(value, size);
  else
    fault("cuBLAS: attribute %d of a product is not emulated", attribute);
  return success;
}

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                               int64_t ld) {
  *layout = new Layout{type, rows, columns, ld};
  return success;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return success;
}
int cublasLtMatrixLayoutSetAttribute(void* description, int attribute, const void* value,
                                     size_t size) {
  auto& layout = *static_cast<Layout*>(description);
  if (attribute == layout_batch_count)
    layout.batch = read_attribute<int32_t>(value, size);
  else if (attribute == layout_batch_offset)
    layout.step = read_attribute<int64_t>(value, size);
  else
    fault("cuBLAS: attribute %d of a matrix is not emulated", attribute);
  return success;
}

int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Wish;
  return success;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Wish*>(preference);
  return success;
}
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                         size_t size) {
  auto& wish = *static_cast<Wish*>(preference);
  const int matrix = attribute - preference_alignment_a;
  if (attribute == preference_workspace)
    wish.workspace = read_attribute<size_t>(value, size);
  else if (attribute == preference_reduction)
    wish.reductions = read_attribute<uint32_t>(value, size);
  else if (matrix >= 0 && matrix < 4)
    wish.alignment[matrix] = read_attribute<uint32_t>(value, size);
  else
    fault("cuBLAS: attribute %d of a preference is not emulated", attribute);
  return success;
}

int cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted, Heuristic* results, int* found) {
  check_shapes(*static_cast<Product*>(product), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
               *static_cast<Layout*>(c), *static_cast<Layout*>(d));
  if (wanted != 1) fault("cuBLAS: %d algorithms at once are not emulated", wanted);
  const auto& wish = *static_cast<Wish*>(preference);
  if (wish.reductions != reduction_in_compute_type)
    fault("cuBLAS: parts of a sum may be joined in 16 bits (reduction schemes %u)",
          wish.reductions);
  Choice choice{{}, mark};
  std::copy_n(wish.alignment, 4, choice.alignment);
  static_assert(sizeof choice <= sizeof results->algorithm);
  std::memcpy(&results->algorithm, &choice, sizeof choice);
  *found = 1;
  return success;
}

int cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                   size_t workspace_bytes, cudaStream_t stream) {
  const Product work = *static_cast<Product*>(product);
  const Layout A = *static_cast<Layout*>(a_layout), B = *static_cast<Layout*>(b_layout);
  const Layout C = *static_cast<Layout*>(c_layout), D = *static_cast<Layout*>(d_layout);
  Choice choice;
  std::memcpy(&choice, algorithm, sizeof choice);
  if (choice.mark != mark) fault("cuBLAS: an algorithm that no heuristic gave");
  const Shape shape = check_shapes(work, A, B, C, D);
  check_matrix("A", A, a, choice.alignment[0]);
  check_matrix("B", B, b, choice.alignment[1]);
  check_matrix("C", C, c, choice.alignment[2]);
  check_matrix("D", D, d, choice.alignment[3]);
  if (c != d) fault("cuBLAS: C and D in different places are not emulated");
  cuda_emulator::check_device_range("cuBLAS, the workspace", workspace, workspace_bytes);
  if (work.epilogue == epilogue_bias)
    cuda_emulator::check_device_range("cuBLAS, the bias", work.bias, D.rows * size_of(D.type));
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  cuda_emulator::put_on_stream(stream, [=] {
    for (int32_t entry = 0; entry < D.batch; ++entry)
      multiply(work, shape, scale, keep, A, a, B, b, D, d, entry);
  });
  return success;
}

}  // extern "C"
