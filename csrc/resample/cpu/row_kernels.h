// The passes of the rows kernel: source rows weighted and added up, and the taps of the W axis.
// Vectors of lanes.h all along; what lies between the passes is in the computing type and may be
// read a little beyond its end.
#pragma once

#include <algorithm>

#include "resample/cpu/row_passes.h"

namespace torch_dnnl {

template <class U>
struct Destination {
  U* to;
  Target target;

  template <class E>
  C10_ALWAYS_INLINE void store(int64_t i, const Lanes<E>& lanes) const {
    if (target == Target::stream)
      return stream_lanes<E>(to + i, lanes);
    if (target == Target::image)
      __builtin_prefetch(reinterpret_cast<const char*>(to + i) + kPrefetch, 1);
    store_lanes<E>(to + i, lanes);
  }
  template <class E>
  C10_ALWAYS_INLINE void store(int64_t i, const Lanes<E>& lanes, int64_t n) const {
    store_lanes<E>(to + i, lanes, n);
  }
};

// The vectors of n elements: f(i) of whole ones, then tail(i, how many) of what is left.
template <class E, class F, class Tail>
C10_ALWAYS_INLINE void for_each_vector(int64_t n, const F& f, const Tail& tail) {
  int64_t i = 0;
  for (; i + kLanes<E> <= n; i += kLanes<E>)
    f(i);
  if (i < n)
    tail(i, n - i);
}

// ---- to[i] (+)= sum over the rows of weight * row[i] ----

// The sum of rows of an image or of lines, a vector at a time. kRows 0: of as many as there are.
template <int kRows, bool kFromImage, class T, class C>
class WeightedRows {
 public:
  explicit WeightedRows(const WeightedRowList<C>& list) : list_(list) {
    for (int r = 0; r < kRows; r++)
      row_[r] = static_cast<const T*>(list.rows[r]), weight_[r] = Lanes<C>(list.weights[r]);
  }

  C10_ALWAYS_INLINE Lanes<C> load(int64_t i) const {
    return sum([&](const T* row) {
      if constexpr (kFromImage)
        __builtin_prefetch(reinterpret_cast<const char*>(row + i) + kPrefetch);
      return load_lanes<C>(row + i);
    });
  }
  C10_ALWAYS_INLINE Lanes<C> load(int64_t i, int64_t n) const {
    return sum([&](const T* row) { return load_lanes<C>(row + i, n); });
  }
  template <class Window>
  C10_ALWAYS_INLINE Window window(int64_t i) const {
    return Window([&](int64_t at) { return load(at); }, i);
  }

 private:
  template <class F>
  C10_ALWAYS_INLINE Lanes<C> sum(const F& load) const {
    const int64_t count = kRows ? kRows : list_.count;
    Lanes<C> sum = load(row(0)) * weight(0);
    for (int64_t r = 1; r < count; r++)
      sum = at::vec::fmadd(load(row(r)), weight(r), sum);
    return sum;
  }
  C10_ALWAYS_INLINE const T* row(int64_t r) const {
    return kRows ? row_[r] : static_cast<const T*>(list_.rows[r]);
  }
  C10_ALWAYS_INLINE Lanes<C> weight(int64_t r) const {
    return kRows ? weight_[r] : Lanes<C>(list_.weights[r]);
  }

  // Copies of a few rows and weights stay in registers: a store to the image cannot change them.
  const T* row_[kRows + 1];
  Lanes<C> weight_[kRows + 1];
  WeightedRowList<C> list_;
};

// f(the rows, in as many registers as pay)
template <bool kFromImage, class T, class C, class F>
void with_rows(const WeightedRowList<C>& list, const F& f) {
  switch (list.count) {
    case 1:
      return f(WeightedRows<1, kFromImage, T, C>(list));
    case 2:
      return f(WeightedRows<2, kFromImage, T, C>(list));
    case 3:
      return f(WeightedRows<3, kFromImage, T, C>(list));
    case 4:
      return f(WeightedRows<4, kFromImage, T, C>(list));
    default:
      return f(WeightedRows<0, kFromImage, T, C>(list));
  }
}

template <bool kFromImage, class T, class C, class U>
void add_rows(const WeightedRowList<C>& list, bool is_first, int64_t n, void* to, Target target) {
  const Destination<U> out{static_cast<U*>(to), target};
  if constexpr (std::is_same_v<C, U>) {
    if (!is_first) {
      const WeightedRows<0, kFromImage, T, C> sum(list);
      return for_each_vector<C>(
          n,
          [&](int64_t i) { out.template store<C>(i, sum.load(i) + Lanes<C>::loadu(out.to + i)); },
          [&](int64_t i, int64_t rest) {
            const Lanes<C> before = load_lanes<C>(out.to + i, rest);
            out.template store<C>(i, sum.load(i, rest) + before, rest);
          });
    }
  }
  with_rows<kFromImage, T>(list, [&](const auto& sum) {
    for_each_vector<C>(
        n,
        [&](int64_t i) { out.template store<C>(i, sum.load(i)); },
        [&](int64_t i, int64_t rest) { out.template store<C>(i, sum.load(i, rest), rest); });
  });
}

// A row that is there already, of elements or of bytes: what WeightedRows is for rows that have to
// be added up.
template <class T>
struct Line {
  const T* line;

  C10_ALWAYS_INLINE Lanes<T> load(int64_t i) const {
    return load_lanes<T>(line + i);
  }
  C10_ALWAYS_INLINE Lanes<T> load(int64_t i, int64_t) const {
    return load_lanes<T>(line + i); // may be read beyond its end
  }
  template <class Window>
  C10_ALWAYS_INLINE Window window(int64_t i) const {
    return Window(line + i);
  }
};

// ---- few channels: to[i] = sum over the taps of element begin + i ----

template <Window kWindow, class E>
using WindowOf = std::conditional_t<
    kWindow == Window::bytes,
    ByteWindow,
    LanesWindow<
        kWindow == Window::shared_1       ? 1
            : kWindow == Window::shared_2 ? 2
            : kWindow == Window::none     ? 0
                                          : 4,
        E>>;

// kTaps 0: as many as there are.
template <Window kWindow, int kTaps, class E, class Row, class U>
void gather_taps(
    const Row& pixels,
    const Taps<WeightOf<E>>& taps,
    int64_t begin,
    int64_t n,
    E empty,
    Destination<U> to) {
  using LineWindow = WindowOf<kWindow, E>;
  const Row row = pixels; // a copy, which a store to the image cannot change
  constexpr int64_t step = kLanes<E>;
  const int64_t width = kTaps == 0 ? taps.width : kTaps;
  const bool has_empty = !taps.empty.empty();
  const int64_t first = begin / step;
  const int64_t* bases = taps.base.data() + first * width;
  const int32_t* indices = taps.index.data() + first * width * step;
  const WeightOf<E>* weights = taps.weight.data() + first * width * step;
  // index(t) and weight(t) of the block that begins at i.
  const auto sum_of = [&](int64_t i, const auto& index, const auto& weight)
                          __attribute__((always_inline)) {
                            const int64_t* base = bases + static_cast<uint64_t>(i) / step * width;
                            LineWindow window = row.template window<LineWindow>(base[0]);
                            const auto pick = [&](int64_t t) {
                              if constexpr (kWindow >= Window::own_4) {
                                if (t > 0)
                                  window = row.template window<LineWindow>(base[t]);
                              }
                              return window.pick(index(t));
                            };
                            Lanes<E> sum = pick(0);
                            if constexpr (!std::is_unsigned_v<E>) {
                              sum = sum * weight(0);
                              for (int64_t t = 1; t < width; t++)
                                sum = at::vec::fmadd(pick(t), weight(t), sum);
                            }
                            return sum;
                          };
  // Blocks that are alike: their index and weights stay in registers.
  const int64_t whole = n / step * step;
  const int64_t alike = std::max<int64_t>(taps.alike_begin * step - begin, 0);
  const int64_t alike_end = std::min(taps.alike_end * step - begin, whole);
  for (int64_t i = 0; i < n; i += step) {
    if constexpr (kTaps > 0) {
      if (i == alike && i < alike_end) {
        typename LineWindow::Index index[kTaps];
        Lanes<E> weight[kTaps];
        for (int64_t t = 0; t < kTaps; t++) {
          index[t] = typename LineWindow::Index(indices + i * width + t * step);
          if constexpr (!std::is_unsigned_v<E>)
            weight[t] = Lanes<E>::loadu(weights + i * width + t * step);
        }
        for (; i < alike_end; i += step)
          to.template store<E>(
              i,
              sum_of(i, [&](int64_t t) { return index[t]; }, [&](int64_t t) { return weight[t]; }));
        if (i >= n)
          break;
      }
    }
    const int32_t* index = indices + i * width;
    const WeightOf<E>* weight = weights + i * width;
    Lanes<E> sum = sum_of(
        i,
        [&](int64_t t) { return typename LineWindow::Index(index + t * step); },
        [&](int64_t t) { return Lanes<E>::loadu(weight + t * step); });
    if (has_empty)
      sum = Lanes<E>::blendv(
          sum, broadcast_lanes(empty), Lanes<E>::loadu(taps.empty.data() + begin + i));
    if (i < whole) {
      to.template store<E>(i, sum);
    } else {
      to.template store<E>(i, sum, n - i);
    }
  }
}

// f(the number of taps, if it is one of those that have a loop of their own, or 0)
template <class E, class F>
void with_taps(int64_t taps, const F& f) {
  if (taps == 1)
    return f(std::integral_constant<int, 1>{});
  if constexpr (!std::is_unsigned_v<E>) {
    switch (taps) {
      case 2:
        return f(std::integral_constant<int, 2>{});
      case 3:
        return f(std::integral_constant<int, 3>{});
      case 4:
        return f(std::integral_constant<int, 4>{});
      default:
        return f(std::integral_constant<int, 0>{});
    }
  }
}

// f(the window) for each taps.window, by the kinds that differ in code.
template <class E, class F>
void with_window(Window window, const F& f) {
  using enum Window;
  if constexpr (LanesWindow<1, E>::is_loaded) {
    switch (window) {
      case shared_1:
        return f(std::integral_constant<Window, shared_1>{});
      case shared_2:
        return f(std::integral_constant<Window, shared_2>{});
      case shared_4:
        return f(std::integral_constant<Window, shared_4>{});
      case own_4:
        return f(std::integral_constant<Window, own_4>{});
      default:
        break;
    }
  }
  f(std::integral_constant<Window, none>{}); // elements are fetched one by one
}

// A function of its own for each: inlined side by side, loops would lack registers.
template <Window kWindow, int kTaps, class E, class U>
C10_NOINLINE void gather_taps_of_line(
    const E* line,
    const Taps<WeightOf<E>>& taps,
    int64_t begin,
    int64_t n,
    E empty,
    Destination<U> to) {
  gather_taps<kWindow, kTaps, E>(Line<E>{line}, taps, begin, n, empty, to);
}

template <class E, class U>
void gather_line(
    const void* line,
    const Taps<WeightOf<E>>& taps,
    int64_t begin,
    int64_t n,
    const RowEnd& end) {
  const Destination<U> to{static_cast<U*>(end.to), end.target};
  const auto* const row = static_cast<const E*>(line);
  const E empty = *static_cast<const E*>(end.empty);
  with_window<E>(taps.window, [&](auto kWindow) {
    // A window of its own for each tap: a loop for their number would gain nothing.
    if constexpr (kWindow >= Window::own_4 && LanesWindow<1, E>::is_loaded) {
      constexpr int kTaps = std::is_unsigned_v<E> ? 1 : 0;
      gather_taps_of_line<kWindow, kTaps, E>(row, taps, begin, n, empty, to);
    } else {
      with_taps<E>(taps.width, [&](auto kTaps) {
        gather_taps_of_line<kWindow, kTaps, E>(row, taps, begin, n, empty, to);
      });
    }
  });
}

// From a row of bytes, with taps for one.
template <class C> // float; no function where there is no such window
void gather_window_of_bytes(
    const void* line,
    const Taps<C>& taps,
    int64_t begin,
    int64_t n,
    const RowEnd& end) {
  const Line<uint8_t> row{static_cast<const uint8_t*>(line)};
  const Destination<C> to{static_cast<C*>(end.to), end.target};
  const C empty = *static_cast<const C*>(end.empty);
  with_taps<C>(taps.width, [&](auto kTaps) {
    gather_taps<Window::bytes, kTaps, C>(row, taps, begin, n, empty, to);
  });
}

// From two rows of an image that are added up on the way, with two taps: bilinear. For taps whose
// window can_gather_rows().
template <class T, class C, class U>
void gather_two_rows(
    const WeightedRowList<C>& list,
    const Taps<C>& taps,
    int64_t begin,
    int64_t n,
    const RowEnd& end) {
  const WeightedRows<2, true, T, C> row(list);
  const Destination<U> to{static_cast<U*>(end.to), end.target};
  const C empty = *static_cast<const C*>(end.empty);
  if (taps.window == Window::shared_1) {
    gather_taps<Window::shared_1, 2, C>(row, taps, begin, n, empty, to);
  } else {
    gather_taps<Window::shared_2, 2, C>(row, taps, begin, n, empty, to);
  }
}

// ---- many channels: to = sum over the taps of a pixel ----

template <int kTaps, class E, class Row, class U>
C10_ALWAYS_INLINE void sum_taps(
    const Row& row,
    int64_t pixel,
    const WeightOf<E>* weight,
    int64_t taps,
    int64_t channels,
    Destination<U> to) {
  const auto sum = [&](auto load) {
    Lanes<E> sum = load(pixel);
    if constexpr (!std::is_unsigned_v<E>) {
      sum = sum * Lanes<E>(weight[0]);
      const int64_t count = kTaps == 0 ? taps : kTaps;
      for (int64_t t = 1; t < count; t++)
        sum = at::vec::fmadd(load(pixel + t * channels), Lanes<E>(weight[t]), sum);
    }
    return sum;
  };
  for_each_vector<E>(
      channels,
      [&](int64_t c) { to.template store<E>(c, sum([&](int64_t i) { return row.load(i + c); })); },
      [&](int64_t c, int64_t rest) {
        to.template store<E>(c, sum([&](int64_t i) { return row.load(i + c, rest); }), rest);
      });
}

// The pixels [begin, begin + n) of an output row.
template <class E, class Row, class U>
void sum_pixels(
    const Row& pixels,
    const HostTable<WeightOf<E>>& table,
    int64_t channels,
    int64_t begin,
    int64_t n,
    E empty,
    Destination<U> out) {
  const Row row = pixels; // a copy, which a store to the image cannot change
  for (int64_t o = begin; o < begin + n; o++, out.to += channels) {
    const int64_t pixel = table.start[o] * channels;
    const auto* weight = &table.weights[o * table.width];
    const int64_t taps = table.count[o];
    switch (taps) {
      case 0:
        for_each_vector<E>(
            channels,
            [&](int64_t c) { out.template store<E>(c, broadcast_lanes(empty)); },
            [&](int64_t c, int64_t rest) {
              out.template store<E>(c, broadcast_lanes(empty), rest);
            });
        break;
      case 1:
        sum_taps<1, E>(row, pixel, weight, taps, channels, out);
        break;
      case 2:
        sum_taps<2, E>(row, pixel, weight, taps, channels, out);
        break;
      case 4:
        sum_taps<4, E>(row, pixel, weight, taps, channels, out);
        break;
      default:
        sum_taps<0, E>(row, pixel, weight, taps, channels, out);
    }
  }
}

template <class E, class U>
void sum_line(
    const void* line,
    const HostTable<WeightOf<E>>& table,
    int64_t channels,
    int64_t begin,
    int64_t n,
    const RowEnd& end) {
  const Destination<U> to{static_cast<U*>(end.to), end.target};
  const Line<E> row{static_cast<const E*>(line)};
  sum_pixels<E>(row, table, channels, begin, n, *static_cast<const E*>(end.empty), to);
}

// From rows of an image that are added up on the way.
template <class T, class C, class U>
void sum_rows(
    const WeightedRowList<C>& list,
    const HostTable<C>& table,
    int64_t channels,
    int64_t begin,
    int64_t n,
    const RowEnd& end) {
  const Destination<U> to{static_cast<U*>(end.to), end.target};
  const C empty = *static_cast<const C*>(end.empty);
  with_rows<false, T>(
      list, [&](const auto& row) { sum_pixels<C>(row, table, channels, begin, n, empty, to); });
}

// ---- the passes of a type ----

// Of an image that is only read, or only written, by way of a line.
template <class T, class C>
inline constexpr ImagePasses<C> kConversions = [] {
  ImagePasses<C> passes{.write = add_rows<false, C, C, T>};
  if constexpr (std::is_same_v<C, compute_t<T>>)
    passes.read = add_rows<true, T, C, C>;
  return passes;
}();

// All there are.
template <class T, class C = compute_t<T>>
inline constexpr ImagePasses<C> kPasses = [] {
  ImagePasses<C> passes = kConversions<T, C>;
  passes.gather = gather_line<C, T>;
  passes.sum = sum_line<C, T>;
  passes.sum_rows = sum_rows<T, C, T>;
  if constexpr (LanesWindow<1, C>::is_loaded)
    passes.gather_rows = gather_two_rows<T, C, T>;
  if constexpr (std::is_same_v<T, uint8_t> && ByteWindow::kBytes > 0)
    passes.gather_window_of_bytes = gather_window_of_bytes<C>;
  return passes;
}();

template <class E>
inline constexpr ImagePasses<WeightOf<E>> kMoves{
    .gather = gather_line<E, E>,
    .sum = sum_line<E, E>};

} // namespace torch_dnnl
