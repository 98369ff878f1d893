// The two passes of the rows kernel: source rows weighted and added up, then the taps of
// the W axis. Vectors of lanes.h all along; what lies between the passes is in the
// computing type and may be read a little beyond its end.
#pragma once

#include <algorithm>
#include <cstring>

#include "resample/cpu/taps.h"

namespace torch_dnnl {

// How far ahead rows of an image are fetched, in bytes. Short rows end before the processor has
// noticed that they are read in order: without this, shrinking took 2.5 times as long (measured
// with 640-byte rows; 1 KB ahead is too late, 8 KB no better). What is written is fetched, too: a
// store that waits for its line keeps all later ones waiting in a queue that is soon full.
inline constexpr int64_t kPrefetch = 4096;

// Where a pass writes: to a row between the passes, to the image, or to the image past the caches.
enum class Target : int8_t { line, image, stream };

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

// From one row of an image to another: a few lines are fetched, then written.
inline void copy_row(const char* from, char* to, int64_t bytes) {
  constexpr int64_t line = 64, group = 8 * line;
  for (int64_t i = 0; i < bytes; i += group) {
    const int64_t end = std::min(bytes, i + group);
    for (int64_t at = i; at < end; at += line)
      __builtin_prefetch(to + at + kPrefetch, 1);
    std::memcpy(to + i, from + i, end - i);
  }
}

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

inline constexpr int64_t kMaxRows = 8; // at a time

// kRows 0: `count`. Without kFirst the sum is added to what is there.
template <int kRows, bool kFirst, bool kFromImage, class T, class C, class U>
void add_rows(
    const void* const* rows,
    const C* weights,
    int64_t count,
    int64_t n,
    Destination<U> to) {
  // Copies of a few rows and weights stay in registers: a store to the image cannot change them.
  const T* row[kRows + 1];
  Lanes<C> weight[kRows + 1];
  for (int r = 0; r < kRows; r++)
    row[r] = static_cast<const T*>(rows[r]), weight[r] = Lanes<C>(weights[r]);
  const auto row_of = [&](int64_t r) { return kRows ? row[r] : static_cast<const T*>(rows[r]); };
  const auto weight_of = [&](int64_t r) { return kRows ? weight[r] : Lanes<C>(weights[r]); };
  const int64_t end = kRows ? kRows : count;
  const auto at = [&](int64_t i, auto load) {
    Lanes<C> sum = load(row_of(0) + i) * weight_of(0);
    if constexpr (!kFirst)
      sum = sum + Lanes<C>::loadu(to.to + i);
    for (int64_t r = 1; r < end; r++)
      sum = at::vec::fmadd(load(row_of(r) + i), weight_of(r), sum);
    return sum;
  };
  for_each_vector<C>(
      n,
      [&](int64_t i) {
        const auto load = [](const T* from) {
          if constexpr (kFromImage)
            __builtin_prefetch(reinterpret_cast<const char*>(from) + kPrefetch);
          return load_lanes<C>(from);
        };
        to.template store<C>(i, at(i, load));
      },
      [&](int64_t i, int64_t rest) {
        const auto load = [&](const T* from) { return load_lanes<C>(from, rest); };
        to.template store<C>(i, at(i, load), rest);
      });
}

template <bool kFromImage, class T, class C, class U>
void add_rows(
    const void* const* rows,
    const C* weights,
    int64_t count,
    bool first,
    int64_t n,
    void* to,
    Target target) {
  const Destination<U> destination{static_cast<U*>(to), target};
  if constexpr (std::is_same_v<C, U>) {
    if (!first)
      return add_rows<0, false, kFromImage, T>(rows, weights, count, n, destination);
  }
  switch (count) {
    case 1:
      return add_rows<1, true, kFromImage, T>(rows, weights, count, n, destination);
    case 2:
      return add_rows<2, true, kFromImage, T>(rows, weights, count, n, destination);
    case 4:
      return add_rows<4, true, kFromImage, T>(rows, weights, count, n, destination);
    default:
      return add_rows<0, true, kFromImage, T>(rows, weights, count, n, destination);
  }
}

// ---- few channels: to[i] = sum over the taps of element begin + i ----

template <class E>
using WeightOf = std::conditional_t<sizeof(E) == 8, double, float>;

template <Window kWindow, class E>
using WindowOf = LanesWindow<
    kWindow == Window::shared_1       ? 1
        : kWindow == Window::shared_2 ? 2
        : kWindow == Window::none     ? 0
                                      : 4,
    E>;

// kTaps 0: as many as there are.
template <Window kWindow, int kTaps, class E, class U>
void gather_taps(
    const E* line,
    const Taps<WeightOf<E>>& taps,
    int64_t begin,
    int64_t n,
    E empty,
    Destination<U> to) {
  using LineWindow = WindowOf<kWindow, E>;
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
                            LineWindow window(line + base[0]);
                            const auto pick = [&](int64_t t) {
                              if constexpr (kWindow == Window::own_4 || kWindow == Window::none) {
                                if (t > 0)
                                  window = LineWindow(line + base[t]);
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

template <class E, class U>
void gather_taps(
    const E* line,
    const Taps<WeightOf<E>>& taps,
    int64_t begin,
    int64_t n,
    E empty,
    void* to,
    Target target) {
  const Destination<U> destination{static_cast<U*>(to), target};
  const auto run = [&](auto kWindow) {
    const auto with_taps = [&](auto kTaps) {
      gather_taps<kWindow, kTaps>(line, taps, begin, n, empty, destination);
    };
    if (taps.width == 1)
      return with_taps(std::integral_constant<int, 1>{});
    if constexpr (!std::is_unsigned_v<E>) {
      switch (taps.width) {
        case 2:
          return with_taps(std::integral_constant<int, 2>{});
        case 4:
          return with_taps(std::integral_constant<int, 4>{});
        default:
          return with_taps(std::integral_constant<int, 0>{});
      }
    }
  };
  switch (taps.window) {
    case Window::shared_1:
      return run(std::integral_constant<Window, Window::shared_1>{});
    case Window::shared_2:
      return run(std::integral_constant<Window, Window::shared_2>{});
    case Window::shared_4:
      return run(std::integral_constant<Window, Window::shared_4>{});
    case Window::own_4:
      return run(std::integral_constant<Window, Window::own_4>{});
    case Window::none:
      return run(std::integral_constant<Window, Window::none>{});
  }
}

// ---- many channels: to = sum over the taps of a pixel ----

template <int kTaps, class E, class U>
void sum_taps(
    const E* pixel,
    const WeightOf<E>* weight,
    int64_t taps,
    int64_t channels,
    Destination<U> to) {
  const auto at = [&](int64_t c) {
    Lanes<E> sum = load_lanes<E>(pixel + c);
    if constexpr (!std::is_unsigned_v<E>) {
      sum = sum * Lanes<E>(weight[0]);
      const int64_t count = kTaps == 0 ? taps : kTaps;
      for (int64_t t = 1; t < count; t++)
        sum = at::vec::fmadd(load_lanes<E>(pixel + t * channels + c), Lanes<E>(weight[t]), sum);
    }
    return sum;
  };
  for_each_vector<E>(
      channels,
      [&](int64_t c) { to.template store<E>(c, at(c)); },
      [&](int64_t c, int64_t rest) { to.template store<E>(c, at(c), rest); });
}

// The pixels [begin, begin + n) of an output row.
template <class E, class U>
void sum_pixels(
    const E* line,
    const HostTable<WeightOf<E>>& table,
    int64_t channels,
    int64_t begin,
    int64_t n,
    E empty,
    void* to,
    Target target) {
  Destination<U> out{static_cast<U*>(to), target};
  for (int64_t o = begin; o < begin + n; o++, out.to += channels) {
    const E* pixel = line + table.start[o] * channels;
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
        sum_taps<1>(pixel, weight, taps, channels, out);
        break;
      case 2:
        sum_taps<2>(pixel, weight, taps, channels, out);
        break;
      case 4:
        sum_taps<4>(pixel, weight, taps, channels, out);
        break;
      default:
        sum_taps<0>(pixel, weight, taps, channels, out);
    }
  }
}

} // namespace torch_dnnl
