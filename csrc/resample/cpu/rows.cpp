#include "resample/cpu/rows.h"

#include <ATen/Parallel.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "core/numeric.h"
#include "resample/cpu/table_cache.h"

namespace torch_dnnl {
namespace {

// Elements of a piece of an output row: its buffers stay in the first-level cache.
constexpr int64_t kPiece = 2048;
// Operations below which a thread costs more than it brings.
constexpr int64_t kTaskOperations = 16384;

bool is_step(const int64_t* size, const int64_t* stride, int64_t step) {
  return size[2] == 1 || stride[4] == step;
}

bool is_planar(const ResampleProblem& p) {
  return is_step(p.src_size, p.src_stride, 1) && is_step(p.dst_size, p.dst_stride, 1);
}

bool is_interleaved(const ResampleProblem& p) {
  return p.src_stride[1] == 1 && p.dst_stride[1] == 1 && is_step(p.src_size, p.src_stride, p.c) &&
      is_step(p.dst_size, p.dst_stride, p.c);
}

template <class T, class C>
void widen(const T* __restrict from, C* __restrict to, int64_t n) {
  if constexpr (std::is_same_v<C, float> && c10::is_reduced_floating_point_v<T>) {
    at::vec::convert(from, to, n);
  } else {
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<C>(from[i]);
  }
}

template <class C, class T>
void narrow(const C* __restrict from, T* __restrict to, int64_t n) {
  if constexpr (std::is_same_v<C, float> && c10::is_reduced_floating_point_v<T>) {
    at::vec::convert(from, to, n);
  } else {
    for (int64_t i = 0; i < n; i++)
      to[i] = convert<T>(from[i]);
  }
}

template <class C>
void scaled(const C* __restrict x, C weight, C* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    sum[i] = weight * x[i];
}

template <class C>
void add_scaled(const C* __restrict x, C weight, C* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    sum[i] += weight * x[i];
}

// The W taps of pixels with one channel: `taps` are tap-major, `out` apart.
template <int kTaps, class C>
void gather_taps(
    const C* line,
    const int32_t* __restrict index,
    const C* __restrict weight,
    int64_t out,
    C* __restrict to,
    int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    C sum = weight[j] * line[index[j]];
    for (int t = 1; t < kTaps; t++)
      sum += weight[t * out + j] * line[index[t * out + j]];
    to[j] = sum;
  }
}

template <class C>
void gather_taps(
    const C* line,
    const int32_t* index,
    const C* weight,
    int64_t taps,
    int64_t out,
    C* to,
    int64_t n) {
  switch (taps) {
    case 1:
      return gather_taps<1>(line, index, weight, out, to, n);
    case 2:
      return gather_taps<2>(line, index, weight, out, to, n);
    case 3:
      return gather_taps<3>(line, index, weight, out, to, n);
    case 4:
      return gather_taps<4>(line, index, weight, out, to, n);
    default:
      break;
  }
  gather_taps<4>(line, index, weight, out, to, n);
  for (int64_t t = 4; t < taps; t++) {
    const int32_t* at = index + t * out;
    const C* w = weight + t * out;
    for (int64_t j = 0; j < n; j++)
      to[j] += w[j] * line[at[j]];
  }
}

// The W taps of one pixel with many channels.
template <class C>
void sum_pixels(
    const C* __restrict pixel,
    const C* weight,
    int64_t taps,
    int64_t channels,
    C* __restrict to) {
  const C a = weight[0];
  if (taps == 1)
    return scaled(pixel, a, to, channels);
  const C b = weight[1];
  const C* next = pixel + channels;
  for (int64_t c = 0; c < channels; c++)
    to[c] = a * pixel[c] + b * next[c];
  for (int64_t t = 2; t < taps; t++)
    add_scaled(pixel + t * channels, weight[t], to, channels);
}

template <class T>
class Rows {
 public:
  using C = compute_t<T>;

  Rows(const ResampleProblem& p, const HostTables<C>& tables)
      : p_(p),
        d_(*tables[0]),
        h_(*tables[1]),
        w_(*tables[2]),
        channels_(is_interleaved(p) ? p.c : 1) {}

  void run() const {
    const int64_t images = p_.n * (channels_ == 1 ? p_.c : 1);
    const int64_t width = std::max<int64_t>(1, kPiece / channels_);
    const int64_t pieces = (p_.dst_size[2] + width - 1) / width;
    const int64_t tasks = images * p_.dst_size[0] * p_.dst_size[1] * pieces;
    const int64_t taps = d_.width * h_.width + w_.width + 2;
    const int64_t operations = std::min(width, p_.dst_size[2]) * channels_ * taps;
    at::parallel_for(0, tasks, kTaskOperations / operations + 1, [&](int64_t begin, int64_t end) {
      Scratch scratch;
      for (int64_t task = begin; task < end; task++) {
        int64_t rest = task;
        const auto next = [&](int64_t count) {
          const int64_t index = rest % count;
          rest /= count;
          return index;
        };
        Piece piece;
        piece.begin = next(pieces) * width;
        piece.size = std::min(width, p_.dst_size[2] - piece.begin);
        piece.h = next(p_.dst_size[1]);
        piece.d = next(p_.dst_size[0]);
        const int64_t c = channels_ == 1 ? next(p_.c) : 0;
        compute(
            piece,
            static_cast<const T*>(p_.src) + rest * p_.src_stride[0] + c * p_.src_stride[1],
            static_cast<T*>(p_.dst) + rest * p_.dst_stride[0] + c * p_.dst_stride[1] +
                piece.d * p_.dst_stride[2] + piece.h * p_.dst_stride[3] + piece.begin * channels_,
            scratch);
      }
    });
  }

 private:
  struct Piece {
    int64_t d, h, begin, size;
  };
  struct Scratch {
    std::vector<C> wide, line, out;
    static C* of(std::vector<C>& buffer, int64_t n) {
      if (static_cast<int64_t>(buffer.size()) < n)
        buffer.resize(n);
      return buffer.data();
    }
  };

  void compute(const Piece& piece, const T* src, T* dst, Scratch& scratch) const {
    const int64_t n = piece.size * channels_;
    if (d_.count[piece.d] == 0 || h_.count[piece.h] == 0) {
      std::fill(dst, dst + n, convert<T>(static_cast<C>(p_.extrapolation_value)));
      return;
    }
    // The part of the source rows that the piece needs; either end may be the lower one.
    const int64_t one = piece.begin, other = piece.begin + piece.size - 1;
    const int64_t low = std::min(w_.lowest(one), w_.lowest(other));
    const int64_t high = std::max(w_.highest(one), w_.highest(other)) + 1;
    const C* line = add_rows(piece, src + low * channels_, (high - low) * channels_, scratch);

    C* out;
    if constexpr (std::is_same_v<T, C>) {
      out = dst;
    } else {
      out = Scratch::of(scratch.out, n);
    }
    apply_taps(piece, line - low * channels_, out);
    if constexpr (!std::is_same_v<T, C>)
      narrow(out, dst, n);
  }

  // The source rows of a piece, weighted and added up.
  const C* add_rows(const Piece& piece, const T* src, int64_t n, Scratch& scratch) const {
    const C *wd = &d_.weights[piece.d * d_.width], *wh = &h_.weights[piece.h * h_.width];
    const int64_t rows_d = d_.count[piece.d], rows_h = h_.count[piece.h];
    const T* first =
        src + d_.start[piece.d] * p_.src_stride[2] + h_.start[piece.h] * p_.src_stride[3];
    if constexpr (std::is_same_v<T, C>) {
      if (rows_d * rows_h == 1 && wd[0] * wh[0] == 1)
        return first;
    }
    C* sum = Scratch::of(scratch.line, n);
    for (int64_t d = 0; d < rows_d; d++) {
      for (int64_t h = 0; h < rows_h; h++) {
        const T* row = first + d * p_.src_stride[2] + h * p_.src_stride[3];
        const C weight = wd[d] * wh[h];
        const C* wide;
        if constexpr (std::is_same_v<T, C>) {
          wide = row;
        } else {
          C* buffer = Scratch::of(scratch.wide, n);
          widen(row, buffer, n);
          wide = buffer;
        }
        if (d + h == 0) {
          scaled(wide, weight, sum, n);
        } else {
          add_scaled(wide, weight, sum, n);
        }
      }
    }
    return sum;
  }

  void apply_taps(const Piece& piece, const C* line, C* out) const {
    if (channels_ == 1) {
      gather_taps(
          line,
          w_.tap_index.data() + piece.begin,
          w_.tap_weight.data() + piece.begin,
          w_.width,
          w_.out,
          out,
          piece.size);
    } else {
      for (int64_t j = 0; j < piece.size; j++) {
        const int64_t o = piece.begin + j;
        if (w_.count[o] == 0)
          continue;
        sum_pixels(
            line + w_.start[o] * channels_,
            &w_.weights[o * w_.width],
            w_.count[o],
            channels_,
            out + j * channels_);
      }
    }
    if (!w_.has_empty_rows)
      return;
    const C value = static_cast<C>(p_.extrapolation_value);
    for (int64_t j = 0; j < piece.size; j++) {
      if (w_.count[piece.begin + j] == 0)
        std::fill_n(out + j * channels_, channels_, value);
    }
  }

  const ResampleProblem& p_;
  const HostTable<C>&d_, &h_, &w_; // owned by the caller's tables
  int64_t channels_;               // of one element of a row
};

} // namespace

bool can_run_rows(const ResampleProblem& p) {
  return p.src_dtype == p.dst_dtype && (is_planar(p) || is_interleaved(p)) &&
      p.src_size[2] <= std::numeric_limits<int32_t>::max(); // the tables' tap_index
}

void run_rows(const ResampleProblem& p, bool transposed) {
  dispatch(ImageTypes{}, p.src_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto tables = cached_tables<compute_t<T>>(p.axes, transposed);
    Rows<T>(p, tables).run();
  });
}

} // namespace torch_dnnl
