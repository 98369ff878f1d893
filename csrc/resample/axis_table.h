// Resample as one sparse matrix per axis.
//
// Every mode and coordinate rule is a row of weights per output index: where
// the row starts in the input, how many taps it has, and the taps. Rows are
// computed here, in integer and float64 arithmetic, by one function that runs
// on the host (where tables are cached) and on the device. Products are rounded
// before anything is added (mul), so that both find the same taps: a kernel is
// chosen by the host's table and may run with the device's. A new filter is a
// value of `Filter` with a case in `tap_weight` and a line in `filter_support`; a
// new coordinate rule is a value of `Coordinates` with a case in
// `source_coordinate`.
//
// Sources: oneDNN Resampling (half_pixel, round half up), ONNX Resize
// (coordinate rules, cubic coefficients, antialias, exclude_outside), ATen
// UpSample (float32 rule of the nearest modes), adaptive average pooling (area).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "core/math.h"
#include "core/numeric.h"

namespace torch_dnnl {

enum class Filter : int8_t { nearest, linear, cubic, lanczos3, lanczos5, area };

enum class Coordinates : int8_t {
  half_pixel,
  align_corners,
  asymmetric,
  half_pixel_symmetric,
  pytorch_half_pixel,
  tf_half_pixel_for_nn,
  tf_crop_and_resize,
  torch_linear,            // half_pixel, but an axis that keeps its size is copied
  torch_antialias_corners, // half-pixel centres, scaled by (I - 1) / (O - 1)
  torch_nearest,           // floor(o / s), rounded as ATen does
  torch_nearest_exact,     // floor((o + 0.5) / s), rounded as ATen does
  torch_nearest_direct,    // the same two, as ATen's other kernels round
  torch_nearest_exact_direct,
};

enum class NearestMode : int8_t { round_prefer_ceil, round_prefer_floor, floor, ceil };

// What defines the table of one axis. Plain data: the key of the cache.
struct AxisSpec {
  int64_t in = 1;
  int64_t out = 1;
  double factor = 0; // 0: the exact ratio out / in
  double cubic_coeff_a = -0.75;
  double roi_begin = 0;
  double roi_end = 1;
  Filter filter = Filter::nearest;
  Coordinates coordinates = Coordinates::half_pixel;
  NearestMode nearest_mode = NearestMode::round_prefer_ceil;
  bool antialias = false;
  bool exclude_outside = false;
  bool float64_index = false; // of torch_nearest and torch_nearest_exact
  bool fixed_point = false;   // weights as Pillow rounds them, for bytes (see fixed_point_weight)
  // Of an axis of which `in` and `out` are a part: its sizes, and where the parts begin.
  int64_t whole_in = 0, whole_out = 0; // 0: these are the whole axis
  int64_t in_begin = 0, out_begin = 0;

  bool operator==(const AxisSpec&) const = default;
};

// The axis that this one is a part of, or it itself. What is said of coordinates holds for that
// one.
TORCH_DNNL_HD inline AxisSpec whole_axis(AxisSpec a) {
  if (a.whole_out != 0)
    a.in = a.whole_in, a.out = a.whole_out;
  a.whole_in = a.whole_out = a.in_begin = a.out_begin = 0;
  return a;
}

// The rows, [out] each; `weights` is [out, width]. A row of no taps lies outside
// the region of tf_crop_and_resize and gives the extrapolation value.
template <class W>
struct AxisTable {
  int64_t in, out, width;
  const int64_t* start;
  const int64_t* count;
  const W* weights;
  // The transpose: output indices [first, last) may use input index i.
  const int64_t* first; // [in]
  const int64_t* last;  // [in]
};

// The weight of input i in output o; 0 where the row does not reach it.
template <class W>
TORCH_DNNL_HD inline W table_weight(const AxisTable<W>& table, int64_t o, int64_t i) {
  const int64_t tap = i - table.start[o];
  return tap >= 0 && tap < table.count[o] ? table.weights[o * table.width + tap] : W(0);
}

// A position as floor + fraction, so that rounding decisions are exact.
struct Position {
  int64_t floor;
  double fraction; // in [0, 1)
};

template <class Int>
TORCH_DNNL_HD inline Position exact_ratio(Int numerator, Int denominator) {
  Int floor = numerator / denominator;
  if (numerator % denominator < 0)
    floor -= 1;
  const Int rest = numerator - floor * denominator;
  return {
      static_cast<int64_t>(floor), static_cast<double>(rest) / static_cast<double>(denominator)};
}

TORCH_DNNL_HD inline Position ratio(__int128 numerator, __int128 denominator) {
  const int64_t n = static_cast<int64_t>(numerator), d = static_cast<int64_t>(denominator);
  if (n == numerator && d == denominator)
    return exact_ratio<int64_t>(n, d); // much faster, and nearly always enough
  return exact_ratio<__int128>(numerator, denominator);
}

// A position far outside reads the edge just as one slightly outside does. Slightly: beyond the
// reach of the widest filter, which is 10 times the image (see least_size_to_antialias).
TORCH_DNNL_HD inline Position position(double x, int64_t in) {
  const double limit = 16.0 * static_cast<double>(in) + 64.0;
  const double clamped = x > limit ? limit : x > -limit ? x : -limit; // never NaN
  const double floor = std::floor(clamped);
  return {static_cast<int64_t>(floor), clamped - floor};
}

// How far apart in the input two neighbouring outputs are.
TORCH_DNNL_HD inline double spacing(const AxisSpec& a) {
  if (a.coordinates == Coordinates::torch_antialias_corners)
    return a.out == 1 ? 0 : static_cast<double>(a.in - 1) / static_cast<double>(a.out - 1);
  return a.factor != 0 ? 1 / a.factor : static_cast<double>(a.in) / static_cast<double>(a.out);
}

TORCH_DNNL_HD inline Position source_coordinate(const AxisSpec& a, int64_t o) {
  const bool exact = a.factor == 0;
  const __int128 in = a.in, out = a.out, index = o;
  const double s = a.factor, length = static_cast<double>(a.in);
  switch (a.coordinates) {
    case Coordinates::align_corners:
      if (a.out == 1)
        return {0, 0.0};
      return exact ? ratio(index * (in - 1), out - 1)
                   : position(static_cast<double>(o) * (length - 1) / (mul(s, length) - 1), a.in);
    case Coordinates::asymmetric:
      return exact ? ratio(index * in, out) : position(static_cast<double>(o) / s, a.in);
    case Coordinates::tf_half_pixel_for_nn:
      return exact ? ratio((2 * index + 1) * in, 2 * out)
                   : position((static_cast<double>(o) + 0.5) / s, a.in);
    case Coordinates::half_pixel_symmetric:
      if (!exact) { // (I / 2) (1 - O / (s I)) + (o + 0.5) / s - 0.5, with one division
        const double doubled = static_cast<double>(2 * o + 1 - a.out); // from the middle
        return position((length - 1) / 2 + doubled / (2 * s), a.in);
      }
      break; // s = O / I: half_pixel
    case Coordinates::pytorch_half_pixel:
      if (a.out == 1)
        return {0, 0.0};
      break;
    case Coordinates::tf_crop_and_resize: {
      const double begin = mul(a.roi_begin, length - 1), end = mul(a.roi_end, length - 1);
      if (a.out == 1)
        return position(0.5 * (begin + end), a.in);
      return position(
          begin + static_cast<double>(o) * (end - begin) / (static_cast<double>(a.out) - 1), a.in);
    }
    case Coordinates::torch_antialias_corners:
      return position(mul(static_cast<double>(o) + 0.5, spacing(a)) - 0.5, a.in);
    case Coordinates::torch_linear:
      if (a.in == a.out)
        return {o, 0.0};
      break;
    default:
      break;
  }
  return exact ? ratio((2 * index + 1) * in - out, 2 * out)
               : position((static_cast<double>(o) + 0.5) / s - 0.5, a.in);
}

// ATen's nearest modes round positions, and interpolate promises the same indices. One kind of
// kernel computes them in the image's own arithmetic type, nearest-exact with a fused multiply-add,
// and rounds them to float32; the other kind ("direct") is float32 throughout.
template <class T>
TORCH_DNNL_HD inline int64_t torch_nearest_index(const AxisSpec& a, int64_t o) {
  const T scale =
      a.factor != 0 ? static_cast<T>(1.0 / a.factor) : static_cast<T>(a.in) / static_cast<T>(a.out);
  T x = scale * static_cast<T>(o);
  if (a.coordinates == Coordinates::torch_nearest_exact) {
    x = std::fma(scale, static_cast<T>(o) + T(0.5), T(-0.5));
    x = (x > 0 ? x : T(0)) + T(0.5);
  } else if (a.coordinates == Coordinates::torch_nearest_exact_direct) {
    x = scale * (static_cast<T>(o) + T(0.5));
  }
  const int64_t index = static_cast<int64_t>(std::floor(static_cast<float>(x)));
  return index < a.in - 1 ? index : a.in - 1;
}

TORCH_DNNL_HD inline int64_t nearest_index(const AxisSpec& a, int64_t o) {
  switch (a.coordinates) {
    case Coordinates::torch_nearest:
    case Coordinates::torch_nearest_exact:
      if (a.float64_index)
        return torch_nearest_index<double>(a, o);
      [[fallthrough]];
    case Coordinates::torch_nearest_direct:
    case Coordinates::torch_nearest_exact_direct:
      return torch_nearest_index<float>(a, o);
    default:
      break;
  }
  const Position x = source_coordinate(a, o);
  const bool up = a.nearest_mode == NearestMode::round_prefer_ceil ? x.fraction >= 0.5
      : a.nearest_mode == NearestMode::round_prefer_floor          ? x.fraction > 0.5
      : a.nearest_mode == NearestMode::ceil                        ? x.fraction > 0
                                                                   : false;
  return x.floor + up;
}

// sinc(t) sinc(t / n) with one sine: that of n x is a polynomial in that of x.
TORCH_DNNL_HD inline double lanczos3(double t) {
  const double x = 3.14159265358979323846 / 3 * t, sine = std::sin(x);
  return t == 0 ? 1 : (3 - 4 * sine * sine) * sine / (3 * x) * (sine / x);
}

TORCH_DNNL_HD inline double lanczos5(double t) {
  const double x = 3.14159265358979323846 / 5 * t, sine = std::sin(x), square = sine * sine;
  return t == 0 ? 1 : (5 - (20 - 16 * square) * square) * sine / (5 * x) * (sine / x);
}

// The filter at distance t, in units of the (stretched) sample spacing.
TORCH_DNNL_HD inline double tap_weight(const AxisSpec& a, double t) {
  t = std::fabs(t);
  switch (a.filter) {
    case Filter::linear:
      return t < 1 ? 1 - t : 0;
    case Filter::cubic: {
      const double c = a.cubic_coeff_a;
      if (t <= 1)
        return ((c + 2) * t - (c + 3)) * t * t + 1;
      return t < 2 ? ((c * t - 5 * c) * t + 8 * c) * t - 4 * c : 0;
    }
    case Filter::lanczos3:
      return t < 3 ? lanczos3(t) : 0;
    case Filter::lanczos5:
      return t < 5 ? lanczos5(t) : 0;
    default:
      return 1;
  }
}

// The distance from which on a filter is 0.
TORCH_DNNL_HD inline double filter_support(Filter filter) {
  return filter == Filter::linear  ? 1
      : filter == Filter::cubic    ? 2
      : filter == Filter::lanczos3 ? 3
      : filter == Filter::lanczos5 ? 5
                                   : 0;
}

// By how much antialiasing widens the filter.
TORCH_DNNL_HD inline double filter_stretch(const AxisSpec& a) {
  return a.antialias && spacing(a) > 1 ? spacing(a) : 1;
}

// The least input size that antialiasing by a factor below 1 is defined for: at half a pixel of
// output. What is smaller would only make filters wider and tables longer.
inline double least_size_to_antialias(double factor) {
  return std::ceil(0.5 / factor);
}

// An upper bound of the number of taps of a filter: the indices strictly inside
// (x - support, x + support).
inline double filter_taps(const AxisSpec& axis) {
  const AxisSpec a = whole_axis(axis);
  return std::ceil(2 * filter_support(a.filter) * filter_stretch(a));
}

// An upper bound of the number of taps in a row.
inline int64_t row_capacity(const AxisSpec& axis) {
  const AxisSpec a = whole_axis(axis);
  if (a.filter == Filter::nearest)
    return 1;
  if (a.filter == Filter::area)
    return (a.in + a.out - 1) / a.out + 1;
  const double taps = filter_taps(a);
  return taps < static_cast<double>(a.in) ? static_cast<int64_t>(taps) : a.in;
}

TORCH_DNNL_HD inline int64_t clamp_index(int64_t i, int64_t n) {
  return i < 0 ? 0 : i >= n ? n - 1 : i;
}

// A weight in Pillow's fixed point, of 22 bits. Pillow's sums of bytes round half up: weights that
// are exact, whose sums alone can be half-way, are a hair above themselves, since ours round half
// to even. A byte that differs after the first axis can differ by 2 after the second.
TORCH_DNNL_HD inline double fixed_point_weight(double weight) {
  const double scaled = std::floor(weight * 0x1p22 + 0.5);
  return scaled == weight * 0x1p22 && weight != 1 ? weight * (1 + 0x1p-21) : scaled * 0x1p-22;
}

// The taps strictly inside the support of the filter around a position, relative to its floor.
TORCH_DNNL_HD inline Range taps_around(const AxisSpec& a, const Position& x) {
  const double support = mul(filter_support(a.filter), filter_stretch(a));
  return {
      static_cast<int64_t>(std::floor(x.fraction - support)) + 1,
      static_cast<int64_t>(std::ceil(x.fraction + support))};
}

// Which inputs row `o` of a whole axis reads; none outside of a region.
TORCH_DNNL_HD inline Range range_of_row(const AxisSpec& a, int64_t o) {
  if (a.filter == Filter::area) {
    const __int128 in = a.in, index = o;
    return {
        static_cast<int64_t>(index * in / a.out),
        static_cast<int64_t>(((index + 1) * in + a.out - 1) / a.out)};
  }
  if (a.coordinates == Coordinates::tf_crop_and_resize) {
    const Position x = source_coordinate(a, o);
    const bool below = x.floor < 0;
    if (below || x.floor > a.in - 1 || (x.floor == a.in - 1 && x.fraction > 0)) {
      const int64_t at = below ? 0 : a.in; // keeps the rows in order, for the transpose
      return {at, at};
    }
  }
  if (a.filter == Filter::nearest) {
    const int64_t index = clamp_index(nearest_index(a, o), a.in);
    return {index, index + 1};
  }
  const Position x = source_coordinate(a, o);
  const Range taps = taps_around(a, x);
  return {clamp_index(x.floor + taps.begin, a.in), clamp_index(x.floor + taps.end - 1, a.in) + 1};
}

// Row `o` of the table of a whole axis, as build_row has it.
template <class Set>
TORCH_DNNL_HD inline Range
build_row_of_whole(const AxisSpec& a, int64_t o, const Set& set, double* taps) {
  const Range range = range_of_row(a, o);
  if (a.filter == Filter::area || a.filter == Filter::nearest || range.count() == 0) {
    for (int64_t k = 0; k < range.count(); k++)
      set(range.begin + k, k, 1.0 / static_cast<double>(range.count()));
    return range;
  }

  const Position x = source_coordinate(a, o);
  const double stretch = filter_stretch(a);
  int64_t low = taps_around(a, x).begin, high = taps_around(a, x).end - 1;
  const auto compute = [&](int64_t k) {
    return tap_weight(a, (static_cast<double>(k) - x.fraction) / stretch);
  };
  const int64_t lowest = low;
  for (int64_t k = low; taps != nullptr && k <= high; k++)
    taps[k - lowest] = compute(k);
  const auto tap = [&](int64_t k) { return taps != nullptr ? taps[k - lowest] : compute(k); };
  const auto sum_of = [&](int64_t low, int64_t high) {
    double sum = 0;
    for (int64_t k = low; k <= high; k++)
      sum += tap(k);
    return sum;
  };
  double total = 0;
  if (a.exclude_outside) {
    const int64_t first = low < -x.floor ? -x.floor : low;
    const int64_t last = high > a.in - 1 - x.floor ? a.in - 1 - x.floor : high;
    total = sum_of(first, last);
    if (std::fabs(total) > 1e-12) // the whole filter sums to 1 or more
      low = first, high = last;
    else
      total = 0; // nothing is left but rounding (the zeros of Lanczos, say): clamp instead
  }
  if (total == 0) {
    const bool sums_to_1 =
        stretch == 1 && (a.filter == Filter::linear || a.filter == Filter::cubic);
    total = sums_to_1 ? 1 : sum_of(low, high);
  }
  // Taps beyond an edge are clamped to it, where their weights add up.
  double sum = 0;
  for (int64_t k = low; k <= high; k++) {
    const int64_t at = clamp_index(x.floor + k, a.in);
    sum += tap(k);
    if (k == high || clamp_index(x.floor + k + 1, a.in) != at) {
      const double weight = sum / total;
      set(at, at - range.begin, a.fixed_point ? fixed_point_weight(weight) : weight);
      sum = 0;
    }
  }
  return range;
}

// Row `o` of the table: which inputs it reads. set(index, tap, weight) is called for each of them,
// in order, row_capacity(a) times at most. The taps are needed twice, to sum them and to divide
// them: with room for filter_taps(a) of them in `taps` they are computed once. Of a part of an
// axis, inputs outside of that part are left out.
template <class Set>
TORCH_DNNL_HD inline Range
build_row(const AxisSpec& a, int64_t o, const Set& set, double* taps = nullptr) {
  if (a.whole_out == 0)
    return build_row_of_whole(a, o, set, taps);
  const auto set_in_part = [&](int64_t index, int64_t tap, double weight) {
    const int64_t at = index - a.in_begin, first = at - tap > 0 ? at - tap : 0;
    if (at >= 0 && at < a.in)
      set(at, at - first, weight);
  };
  const Range row = build_row_of_whole(whole_axis(a), a.out_begin + o, set_in_part, taps);
  const auto in_part = [&](int64_t index) {
    const int64_t at = index - a.in_begin;
    return at < 0 ? 0 : at > a.in ? a.in : at;
  };
  return {in_part(row.begin), in_part(row.end)};
}

TORCH_DNNL_HD inline bool is_flipped(const AxisSpec& a) {
  return a.coordinates == Coordinates::tf_crop_and_resize && a.filter != Filter::area &&
      a.roi_end < a.roi_begin;
}

// Which of `out` rows may contain one of these inputs. Rows are in order (in reverse order for a
// flipped region), so both ends are found by bisection. `row(o)`: the inputs of one of them.
template <class Row>
TORCH_DNNL_HD inline Range
readers_of(const Range& inputs, int64_t out, bool flipped, const Row& row) {
  // The first row, in their order, that ends beyond the first input or that starts beyond the last.
  const auto first_row = [&](bool that_ends) {
    int64_t low = 0, high = out;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Range reads = row(flipped ? out - 1 - middle : middle);
      if (that_ends ? reads.end > inputs.begin : reads.begin >= inputs.end)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  const int64_t begin = first_row(true), end = first_row(false);
  return flipped ? Range{out - end, out - begin} : Range{begin, end};
}

// The output indices whose rows may contain input index i.
template <class W>
TORCH_DNNL_HD inline Range
build_transposed_row(const AxisTable<W>& table, bool flipped, int64_t i) {
  return readers_of({i, i + 1}, table.out, flipped, [&](int64_t o) {
    return Range{table.start[o], table.start[o] + table.count[o]};
  });
}

} // namespace torch_dnnl
