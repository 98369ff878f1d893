// The passes of the rows kernel: source rows weighted and added up, and the taps of the W axis.
// Vectors of lanes.h all along; what lies between the passes is in the computing type and may be
// read a little beyond its end.
#pragma once

#include <algorithm>

#include "core/dispatch.h"
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

template <class U, class C>
C10_ALWAYS_INLINE Destination<U> destination(const RowPart<C>& part) {
  return {static_cast<U*>(part.to), part.target};
}

// The vectors of n elements: f(i) of whole ones, then f(i, how many) of what is left.
template <class E, class F>
C10_ALWAYS_INLINE void for_each_vector(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes<E> <= n; i += kLanes<E>)
    f(i);
  if (i < n)
    f(i, n - i);
}

// f(1), ..., f(count - 1), without a loop where the count is known. kCount 0: it is not.
template <int kCount, class F>
C10_ALWAYS_INLINE void for_others(int64_t count, const F& f) {
  if constexpr (kCount > 0) {
#pragma GCC unroll 4
    for (int64_t i = 1; i < kCount; i++)
      f(i);
  } else {
    for (int64_t i = 1; i < count; i++)
      f(i);
  }
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

  // `n`: how many, if less than a vector.
  template <class... N>
  C10_ALWAYS_INLINE Lanes<C> load(int64_t i, N... n) const {
    Lanes<C> sum = multiply_lanes(load_row(0, i, n...), weight(0));
    for_others<kRows>(list_.count, [&](int64_t r) __attribute__((always_inline)) {
      sum = multiply_add(load_row(r, i, n...), weight(r), sum);
    });
    return sum;
  }
  template <class Window>
  C10_ALWAYS_INLINE Window window(int64_t i) const {
    return Window([&](int64_t at) { return load(at); }, i);
  }

 private:
  template <class... N>
  C10_ALWAYS_INLINE Lanes<C> load_row(int64_t r, int64_t i, N... n) const {
    const T* const row = kRows ? row_[r] : static_cast<const T*>(list_.rows[r]);
    if constexpr (kFromImage && sizeof...(n) == 0)
      __builtin_prefetch(reinterpret_cast<const char*>(row + i) + kPrefetch);
    return load_lanes<C>(row + i, n...);
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
  with_constant<0, 1, 2, 3, 4>(
      list.count, [&](auto kRows) { f(WeightedRows<kRows, kFromImage, T, C>(list)); });
}

template <bool kFromImage, class T, class C, class U>
void add_rows(const WeightedRowList<C>& list, bool is_first, int64_t n, void* to, Target target) {
  const Destination<U> out{static_cast<U*>(to), target};
  if constexpr (std::is_same_v<C, U>) {
    if (!is_first) {
      const WeightedRows<0, kFromImage, T, C> sum(list);
      return for_each_vector<C>(n, [&](int64_t i, auto... rest) {
        const Lanes<C> before = load_lanes<C>(out.to + i, rest...);
        out.template store<C>(i, sum.load(i, rest...) + before, rest...);
      });
    }
  }
  with_rows<kFromImage, T>(list, [&](const auto& sum) {
    for_each_vector<C>(n, [&](int64_t i, auto... rest) {
      out.template store<C>(i, sum.load(i, rest...), rest...);
    });
  });
}

// A row that is there already, of elements or of bytes: what WeightedRows is for rows that have to
// be added up.
template <class T>
struct Line {
  const T* line;

  template <class... N>
  C10_ALWAYS_INLINE Lanes<T> load(int64_t i, N...) const {
    return load_lanes<T>(line + i); // may be read beyond its end
  }
  template <class Window>
  C10_ALWAYS_INLINE Window window(int64_t i) const {
    return Window(line + i);
  }
};

// ---- few channels: to[i] = sum over the taps of element begin + i ----

template <Window kWindow, class E>
using WindowOf =
    std::conditional_t<kWindow == Window::bytes, ByteWindow, LanesWindow<vectors_of(kWindow), E>>;

// kTaps 0: as many as there are.
template <Window kWindow, int kTaps, class E, class U, class Row>
C10_ALWAYS_INLINE void gather_taps(const Row& pixels, const RowPart<WeightOf<E>>& part) {
  using LineWindow = WindowOf<kWindow, E>;
  const Row row = pixels; // a copy, which a store to the image cannot change
  constexpr int64_t step = kLanes<E>;
  const Taps<WeightOf<E>>& taps = *part.taps;
  const Destination<U> to = destination<U>(part);
  const E empty = *static_cast<const E*>(part.empty);
  const int64_t begin = part.begin * part.channels, n = part.size * part.channels;
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
                              sum = multiply_lanes(sum, weight(0));
                              for (int64_t t = 1; t < width; t++)
                                sum = multiply_add(pick(t), weight(t), sum);
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
    if (i < whole)
      to.template store<E>(i, sum);
    else
      to.template store<E>(i, sum, n - i);
  }
}

// f(the number of taps, if it is one of those that have a loop of their own, or 0)
template <class E, class F>
void with_taps(int64_t taps, const F& f) {
  if constexpr (std::is_unsigned_v<E>)
    f(std::integral_constant<int, 1>{});
  else
    with_constant<0, 1, 2, 3, 4>(static_cast<int>(taps), f);
}

// A function of its own for each: inlined side by side, loops would lack registers.
template <Window kWindow, int kTaps, class E, class U, class T>
C10_NOINLINE void gather_taps_of_line(const T* line, const RowPart<WeightOf<E>>& part) {
  gather_taps<kWindow, kTaps, E, U>(Line<T>{line}, part);
}

template <class E, class U>
void gather_line(const E* line, const RowPart<WeightOf<E>>& part) {
  using enum Window;
  const auto gather = [&](auto kWindow) {
    // A window of its own for each tap: a loop for their number would gain nothing.
    if constexpr (kWindow >= own_4 && LanesWindow<1, E>::is_loaded) {
      gather_taps_of_line<kWindow, std::is_unsigned_v<E> ? 1 : 0, E, U>(line, part);
    } else {
      with_taps<E>(part.taps->width, [&](auto kTaps) {
        gather_taps_of_line<kWindow, kTaps, E, U>(line, part);
      });
    }
  };
  if constexpr (LanesWindow<1, E>::is_loaded)
    with_constant<none, shared_1, shared_2, shared_4, own_4>(part.taps->window, gather);
  else
    gather(std::integral_constant<Window, none>{}); // elements are fetched one by one
}

// From a row of bytes, with taps for one.
template <class C> // float; no function where there is no such window
void apply_taps_to_bytes(const void* row, const RowPart<C>& part) {
  with_taps<C>(part.taps->width, [&](auto kTaps) {
    gather_taps_of_line<Window::bytes, kTaps, C, C>(static_cast<const uint8_t*>(row), part);
  });
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
  for_each_vector<E>(channels, [&](int64_t c, auto... rest) {
    Lanes<E> sum = row.load(pixel + c, rest...);
    if constexpr (!std::is_unsigned_v<E>) {
      sum = multiply_lanes(sum, Lanes<E>(weight[0]));
      for_others<kTaps>(taps, [&](int64_t t) __attribute__((always_inline)) {
        sum = multiply_add(row.load(pixel + t * channels + c, rest...), Lanes<E>(weight[t]), sum);
      });
    }
    to.template store<E>(c, sum, rest...);
  });
}

template <class E, class U, class Row>
void sum_pixels(const Row& pixels, const RowPart<WeightOf<E>>& part) {
  const Row row = pixels; // a copy, which a store to the image cannot change
  const HostTable<WeightOf<E>>& table = part.table;
  const int64_t channels = part.channels, end = part.begin + part.size;
  const E empty = *static_cast<const E*>(part.empty);
  Destination<U> out = destination<U>(part);
  for (int64_t o = part.begin; o < end; o++, out.to += channels) {
    const int64_t pixel = table.start[o] * channels, taps = table.count[o];
    const auto* weight = &table.weights[o * table.width];
    if (taps == 0) {
      for_each_vector<E>(channels, [&](int64_t c, auto... rest) {
        out.template store<E>(c, broadcast_lanes(empty), rest...);
      });
    } else {
      with_constant<0, 1, 2, 3, 4>(static_cast<int>(taps), [&](auto kTaps) {
        sum_taps<kTaps, E>(row, pixel, weight, taps, channels, out);
      });
    }
  }
}

// ---- few or many channels ----

template <class E, class U>
C10_NOINLINE void sum_pixels_of_line(const E* line, const RowPart<WeightOf<E>>& part) {
  sum_pixels<E, U>(Line<E>{line}, part);
}

// Rows may be short: this does no more than call the one or the other.
template <class E, class U>
void apply_taps(const void* line, const RowPart<WeightOf<E>>& part) {
  const auto* const row = static_cast<const E*>(line);
  part.taps != nullptr ? gather_line<E, U>(row, part) : sum_pixels_of_line<E, U>(row, part);
}

// Two rows of an image that are added up on the way, with two taps: bilinear.
template <Window kWindow, class T, class C, class U>
C10_NOINLINE void gather_two_rows(const WeightedRowList<C>& list, const RowPart<C>& part) {
  gather_taps<kWindow, 2, C, U>(WeightedRows<2, true, T, C>(list), part);
}

// Few channels: for taps whose window can_gather_rows().
template <class T, class C, class U>
void apply_taps_to_rows(const WeightedRowList<C>& list, const RowPart<C>& part) {
  using enum Window;
  if (part.taps == nullptr) {
    with_rows<false, T>(list, [&](const auto& row) { sum_pixels<C, U>(row, part); });
  } else if constexpr (LanesWindow<1, C>::is_loaded) {
    part.taps->window == shared_1 ? gather_two_rows<shared_1, T, C, U>(list, part)
                                  : gather_two_rows<shared_2, T, C, U>(list, part);
  }
}

// ---- the passes of a type ----

// Images of some types are only read, or only written, by way of a line.
template <class T, class C>
inline constexpr bool kHasTaps =
    std::is_same_v<C, compute_t<T>> && (!std::is_integral_v<T> || std::is_same_v<T, uint8_t>);

template <class T, class C>
inline constexpr ImagePasses<C> kPasses = [] {
  ImagePasses<C> passes{.write = add_rows<false, C, C, T>};
  if constexpr (std::is_same_v<C, compute_t<T>>)
    passes.read = add_rows<true, T, C, C>;
  if constexpr (kHasTaps<T, C>) {
    passes.apply_taps = apply_taps<C, T>;
    passes.apply_taps_to_rows = apply_taps_to_rows<T, C, T>;
  }
  if constexpr (std::is_same_v<T, uint8_t> && kHasTaps<T, C> && ByteWindow::kBytes > 0)
    passes.apply_taps_to_bytes = apply_taps_to_bytes<C>;
  return passes;
}();

template <class T, class C>
const ImagePasses<C>& passes_of() {
  return kPasses<T, C>;
}

template <class E>
const ImagePasses<WeightOf<E>>& moves_of() {
  static constexpr ImagePasses<WeightOf<E>> kMoves{.apply_taps = apply_taps<E, E>};
  return kMoves;
}

} // namespace torch_dnnl
