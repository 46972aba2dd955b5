// Linear layers: the product with bias and activation applied to each tile while it is in cache,
// the element-wise half of their backward, and the gate of SwiGLU.
#include <algorithm>
#include <type_traits>

#include "core/cpu/activation.h"
#include "core/cpu/gemm16.h"
#include "core/cpu/row.h"
#include "core/kernels.h"

namespace tapeformer::kernels::cpu {
namespace {

using namespace tapeformer::cpu;

// Every row of a tile of z, a matrix with O columns, becomes the bias: what the product adds to.
template <class T>
void start_tile(const Tile& tile, int64_t O, const T* bias, T* z) {
  const T* row = bias + tile.column;
  for (int64_t n = tile.row; n < tile.row_end; ++n)
    std::copy_n(row, tile.column_end - tile.column, z + n * O + tile.column);
}

// y = f(z) in one tile.
template <class F, class T>
void finish_tile(const Tile& tile, int64_t O, const T* z, T* y) {
  if constexpr (!std::is_same_v<F, Identity>)
    for (int64_t n = tile.row; n < tile.row_end; ++n) {
      const T* z_row = z + n * O + tile.column;
      row_write(tile.column_end - tile.column, y + n * O + tile.column, false,
                [=](int64_t o) { return F::value(Wide<T>(z_row[o])); });
    }
}

// Rows of one partial column sum: a number that depends on N alone.
int64_t rows_of_part(int64_t N) { return std::max<int64_t>(16, (N + 63) / 64); }

// dz = dy f'(z) in rows [begin, end), and their sum over the rows. sum is optional, and so is dz
// where f is the identity: then it is dy.
template <class F, class T>
void backward_rows(int64_t begin, int64_t end, int64_t O, const T* dy, const T* z, T* dz,
                   Wide<T>* sum) {
  for (int64_t n = begin; n < end; ++n) {
    const T *dy_row = dy + n * O, *z_row = z + n * O, *summed = dy_row;
    if (dz) {
      row_write(O, dz + n * O, false,
                [=](int64_t o) { return dy_row[o] * F::derivative(Wide<T>(z_row[o])); });
      summed = dz + n * O;
    }
    if (sum) row_write(O, sum, n != begin, [=](int64_t o) { return Wide<T>(summed[o]); });
  }
}

// dbias (+)= the sum of `parts` rows of partial sums, in their order.
template <class T>
void add_parts(const T* partial, int64_t parts, int64_t O, T* dbias, bool accumulate) {
  parallel_pieces(O, 256, parts, [=](int64_t begin, int64_t end) {
    if (!accumulate) std::fill(dbias + begin, dbias + end, T(0));
    for (int64_t part = 0; part < parts; ++part) {
      const T* row = partial + part * O + begin;
      row_write(end - begin, dbias + begin, true, [=](int64_t o) { return row[o]; });
    }
  });
}

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    Activation activation, const Tensor& z, const Tensor& y) {
  dispatch_floating("linear", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t N = x.dim(0), I = x.dim(1), O = weight.dim(0);
    const int64_t stride_x = std::max<int64_t>(I, 1), stride_y = std::max<int64_t>(O, 1);
    Gemm product{N, O, I, false, true, stride_x, stride_x, stride_y};
    T* result = y.data<T>();
    T* sums = z.defined() && activation != Activation::none ? z.data<T>() : result;
    const T* shift = optional_data<T>(bias);
    product.beta = shift ? 1 : 0;
    check_gemm(product);
    const Tiling tiling = tiling_of(N, O, I);
    dispatch_activation(activation, [&](auto f) {
      parallel_for(tiling.count(), true, [&](int64_t i) {
        if (shift) start_tile(tiling[i], O, shift, sums);
        gemm_tile(product, tiling[i], x.data<T>(), weight.data<T>(), sums);
        finish_tile<decltype(f)>(tiling[i], O, sums, result);
      });
    });
  });
}

// y = f(z), z = x W^T + b: dz = dy f'(z), and b adds to every row, so dbias = sum over rows of dz.
void bias_activation_backward(const Tensor& dy, const Tensor& z, Activation activation,
                              const Tensor& dz, const Destination& dbias) {
  if (!dz.defined() && !dbias) return;
  dispatch_floating("linear", dy.dtype(), [&](auto type) {
    using T = decltype(type);
    using W = Wide<T>;
    const int64_t O = dy.dim(-1), N = O ? dy.numel() / O : 0;
    const int64_t rows = rows_of_part(N), parts = (N + rows - 1) / rows;
    const Tensor partial = dbias ? Tensor::empty({parts, O}, dtype_of<W>) : Tensor{};
    const T* dy_data = dy.data<T>();
    const T* z_data = activation == Activation::none ? dy_data : z.data<T>();
    T* dz_data = optional_data<T>(dz);
    W* sums = optional_data<W>(partial);
    dispatch_activation(activation, [&](auto f) {
      parallel_for(parts, N * O >= parallel_threshold, [&](int64_t part) {
        backward_rows<decltype(f)>(part * rows, std::min(N, (part + 1) * rows), O, dy_data, z_data,
                                   dz_data, sums ? sums + part * O : nullptr);
      });
    });
    if (dbias) add_parts(sums, parts, O, dbias.tensor.data<W>(), dbias.accumulate);
  });
}

void swiglu_forward(const Tensor& x, const Tensor& y) {
  dispatch_floating("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t F = y.dim(-1), N = F ? y.numel() / F : 0;
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_pieces(N, std::max<int64_t>(1, 8192 / std::max<int64_t>(F, 1)), F,
                    [=](int64_t begin, int64_t end) {
                      for (int64_t n = begin; n < end; ++n) {
                        const T *a = in + 2 * n * F, *b = a + F;
                        row_write(F, out + n * F, false,
                                  [=](int64_t i) { return Silu::value(Wide<T>(a[i])) * b[i]; });
                      }
                    });
  });
}

// y = silu(a) b: da = dy b silu'(a), db = dy silu(a).
void swiglu_backward(const Tensor& dy, const Tensor& x, const Destination& dx) {
  dispatch_floating("swiglu", x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t F = dy.dim(-1), N = F ? dy.numel() / F : 0;
    const T *in = x.data<T>(), *dout = dy.data<T>();
    T* din = dx.tensor.data<T>();
    parallel_pieces(N, std::max<int64_t>(1, 8192 / std::max<int64_t>(F, 1)), F,
                    [=, accumulate = dx.accumulate](int64_t begin, int64_t end) {
                      for (int64_t n = begin; n < end; ++n) {
                        const T *a = in + 2 * n * F, *b = a + F, *d = dout + n * F;
                        T* da = din + 2 * n * F;
                        row_write(F, da, accumulate, [=](int64_t i) {
                          return d[i] * b[i] * Silu::derivative(Wide<T>(a[i]));
                        });
                        row_write(F, da + F, accumulate,
                                  [=](int64_t i) { return d[i] * Silu::value(Wide<T>(a[i])); });
                      }
                    });
  });
}

}  // namespace tapeformer::kernels::cpu
