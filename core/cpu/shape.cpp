// Kernels that move elements: rearranged dimensions, and ranges of one dimension.
#include <algorithm>
#include <array>

#include "core/cpu/loops.h"

namespace tapeformer::kernels::cpu {
using namespace tapeformer::cpu;

namespace {

// One loop of a rearrangement: `size` steps, `from` elements apart in x and `to` apart in y.
struct Loop {
  int64_t size, from, to;
};

// The loops over the dimensions of y, outermost first; dimensions that stay neighbours are merged
// and those of size 1 dropped.
std::vector<Loop> loops_of(const Shape& x, const std::vector<int>& order) {
  std::array<int64_t, Shape::max_rank> stride{};  // of each dimension in x
  int64_t elements = 1;
  for (int i = x.rank() - 1; i >= 0; --i) {
    stride[i] = elements;
    elements *= x[i];
  }
  std::vector<Loop> loops;
  for (const int dim : order) {
    if (x[dim] == 1) continue;
    if (!loops.empty() && loops.back().from == stride[dim] * x[dim]) {
      loops.back().size *= x[dim];
      loops.back().from = stride[dim];
    } else {
      loops.push_back({x[dim], stride[dim], 0});
    }
  }
  elements = 1;
  for (size_t i = loops.size(); i-- > 0;) {
    loops[i].to = elements;
    elements *= loops[i].size;
  }
  return loops;
}

// y (+)= x over two loops: x is contiguous along `rows`, y along `columns`. Tiles go through a
// buffer, so that each line of memory is touched once, however far apart the lines are.
template <class T>
void copy_plane(const T* x, T* y, const Loop& rows, const Loop& columns, bool accumulate) {
  constexpr int64_t tile = 32;
  T buffer[tile * (tile + 1)];
  for (int64_t r0 = 0; r0 < rows.size; r0 += tile)
    for (int64_t c0 = 0; c0 < columns.size; c0 += tile) {
      const int64_t height = std::min(tile, rows.size - r0),
                    width = std::min(tile, columns.size - c0);
      for (int64_t c = 0; c < width; ++c)
        std::copy_n(x + (c0 + c) * columns.from + r0, height, buffer + c * (tile + 1));
      for (int64_t r = 0; r < height; ++r)
        assign_range(0, width, y + (r0 + r) * rows.to + c0, accumulate,
                     [from = buffer + r](int64_t c) { return from[c * (tile + 1)]; });
    }
}

// y (+)= x over all loops. The last one writes along memory. Where it reads across memory, it is
// tiled together with the loop that reads along memory; all others are tasks.
template <class T>
void rearrange(const T* x, T* y, std::vector<Loop> loops, int64_t numel, bool accumulate) {
  if (loops.empty()) loops.push_back({1, 1, 1});
  const Loop last = loops.back();
  loops.pop_back();
  Loop rows{1, 0, 0};
  if (last.from != 1)
    for (size_t i = 0; i < loops.size(); ++i)
      if (loops[i].from == 1) {
        rows = loops[i];
        loops.erase(loops.begin() + i);
        break;
      }
  const int64_t plane = rows.size * last.size;
  parallel_pieces(numel / plane, std::max<int64_t>(1, piece / plane), plane,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t task = begin; task < end; ++task) {
                      int64_t from = 0, to = 0, rest = task;
                      for (size_t i = loops.size(); i-- > 0; rest /= loops[i].size) {
                        from += rest % loops[i].size * loops[i].from;
                        to += rest % loops[i].size * loops[i].to;
                      }
                      if (last.from == 1)
                        assign_range(0, last.size, y + to, accumulate,
                                     [in = x + from](int64_t i) { return in[i]; });
                      else
                        copy_plane(x + from, y + to, rows, last, accumulate);
                    }
                  });
}

// Calls f(row, column, count) for pieces of `rows` rows of `length` elements each.
template <class F>
void for_row_pieces(int64_t rows, int64_t length, const F& f) {
  parallel_pieces(rows * length, piece, 1, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / length, column = begin % length;
      const int64_t count = std::min(length - column, end - begin);
      f(row, column, count);
      begin += count;
    }
  });
}

// y (+)= x for `rows` rows of `length` elements, whose starts are x_step and y_step apart.
template <class T>
void copy_rows(const T* x, int64_t x_step, T* y, int64_t y_step, int64_t rows, int64_t length,
               bool accumulate) {
  for_row_pieces(rows, length, [=](int64_t row, int64_t column, int64_t count) {
    assign_range(0, count, y + row * y_step + column, accumulate,
                 [in = x + row * x_step + column](int64_t i) { return in[i]; });
  });
}

}  // namespace

void permute(const Tensor& x, const std::vector<int>& order, const Destination& y) {
  if (x.numel() == 0) return;
  dispatch_number("permute", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    rearrange(x.data<T>(), y.tensor.data<T>(), loops_of(x.shape(), order), x.numel(), y.accumulate);
  });
}

void slice_read(const Tensor& x, int dim, int64_t start, const Destination& y) {
  const Around whole(x.shape(), dim), part(y.tensor.shape(), dim);
  dispatch_number("slice", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    copy_rows(x.data<T>() + start * whole.inner, whole.n * whole.inner, y.tensor.data<T>(),
              part.n * part.inner, part.outer, part.n * part.inner, y.accumulate);
  });
}

void slice_write(const Tensor& x, int dim, int64_t start, const Destination& y) {
  const Around part(x.shape(), dim), whole(y.tensor.shape(), dim);
  dispatch_number("slice", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    copy_rows(x.data<T>(), part.n * part.inner, y.tensor.data<T>() + start * whole.inner,
              whole.n * whole.inner, part.outer, part.n * part.inner, y.accumulate);
  });
}

void slice_backward(const Tensor& dy, int dim, int64_t start, const Destination& dx) {
  if (!dx.accumulate) {
    const Around part(dy.shape(), dim), whole(dx.tensor.shape(), dim);
    dispatch_floating("slice", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t step = whole.n * whole.inner, end = (start + part.n) * whole.inner;
      const auto clear = [&](T* out, int64_t length) {
        for_row_pieces(whole.outer, length, [=](int64_t row, int64_t column, int64_t count) {
          std::fill_n(out + row * step + column, count, T(0));
        });
      };
      clear(dx.tensor.data<T>(), start * whole.inner);
      clear(dx.tensor.data<T>() + end, step - end);
    });
  }
  slice_write(dy, dim, start, dx);
}

}  // namespace tapeformer::kernels::cpu
