// The inner loops of convolution on planes: vectors whose lanes are neighbouring pixels of a row,
// weights that are broadcast, and all sums in registers.
#pragma once

#include <algorithm>

#include "conv/cpu/pixel_lanes/plan.h"
#include "conv/cpu/shared/microkernel.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

// Vectors of pixels, which are in registers with a weight and a sum for each vector and output.
inline constexpr int kPlaneVectors = 4;
constexpr int most_plane_vectors(int outputs) {
  return std::min(kPlaneVectors, (kRegisters - 2) / (outputs + 1));
}

// A row of taps. Step u of a kernel takes the row `row` + u * row_step of an image.
template <class C>
struct PlaneRow {
  const C* pixels;  // of row 0 of the image
  const C* weights; // [tap][output]
  int64_t row;
  bool meets_first; // or all outputs but the first
};

// What a kernel computes, for some vectors of pixels: of neighbouring ones, or of several images.
// All steps are in elements.
template <class C>
struct PlaneOperands {
  const PlaneRow<C>* rows;
  int64_t count;
  const int64_t* taps; // where the pixels of a row's taps are
  int64_t tap_count;
  int64_t first_row, last_row; // that the image has
  int64_t row_pitch, row_step;
  int64_t steps;
  int64_t pixel_step; // from one vector to the next one
  const C* bias;      // of each output
  C* out;
  int64_t out_row, out_step; // to the next row, and to the next vector
  int64_t out_channel;       // to the next output, if outputs are channels
  int64_t vectors;
  int64_t pixels[kPlaneVectors]; // of the vectors that are stored
  bool is_whole;                 // all of them
  Bounds<C> bounds;              // clamp the sums
};

namespace plane_kernels_detail {

inline constexpr int kUnrolled = 64;

template <class C>
inline Vector<C> load_once(const C* from) {
  Vector<C> vector = load_vector(from);
  keep_in_register(vector);
  return vector;
}

// Outputs are the channels of a group; or, if it slides, rows: a step takes in rows of the image
// for as many rows of outputs, completes the first of them and begins another one.
//
// The sum of output `m` and vector `v` is sums[m * vectors + v]. The loops over sums and over
// vectors are unrolled completely, so that these arrays are registers.
template <class C, bool slides, int outputs, int vectors>
void gather(const PlaneOperands<C>& o) {
  constexpr int count = outputs * vectors;
  constexpr int complete = slides ? 1 : outputs; // outputs in a step
  // Copies, which a store cannot change.
  const int64_t pixel_step = o.pixel_step, pitch = o.row_pitch, row_step = o.row_step;
  const int64_t tap_count = o.tap_count;
  const PlaneRow<C>*const first = o.rows, *const last = first + o.count;
  const int64_t* const taps = o.taps;
  const C* const bias = o.bias;
  const Bounds<C> bounds = o.bounds;
  C* out = o.out;
  const auto bias_of = [&](int i) __attribute__((always_inline)) {
    return broadcast(bias[slides ? 0 : i / vectors]);
  };
  Vector<C> sums[count];
#pragma GCC unroll kUnrolled
  for (int i = 0; i < count; i++)
    sums[i] = bias_of(i);
  // Adds the taps of a row to the sums of all outputs from `from` on.
  const auto add_row =
      [&](const C* pixels, const C* weights, auto from) __attribute__((always_inline)) {
        for (int64_t tap = 0; tap < tap_count; tap++, weights += outputs) {
          const C* const x = pixels + taps[tap];
          Vector<C> pixel[vectors];
#pragma GCC unroll kUnrolled
          for (int v = 0; v < vectors; v++)
            pixel[v] = load_once(x + v * pixel_step);
#pragma GCC unroll kUnrolled
          for (int i = from() * vectors; i < count; i++)
            sums[i] = multiply_add(pixel[i % vectors], broadcast(weights[i / vectors]), sums[i]);
        }
      };
  for (int64_t step = 0, at = 0; step < o.steps; step++, at += row_step) {
    for (const PlaneRow<C>* row = first; row != last; row++) {
      const int64_t y = row->row + at;
      if (y < o.first_row || y >= o.last_row)
        continue;
      if (!slides || row->meets_first)
        add_row(row->pixels + y * pitch, row->weights, std::integral_constant<int, 0>());
      else
        add_row(row->pixels + y * pitch, row->weights, std::integral_constant<int, 1>());
    }
    if (step + complete >= outputs) {
      if (bounds.are_set) {
#pragma GCC unroll kUnrolled
        for (int i = 0; i < complete * vectors; i++)
          sums[i] = bounds.clamp(sums[i]);
      }
      const auto to = [&](int i) __attribute__((always_inline)) {
        return out + i % vectors * o.out_step + i / vectors * o.out_channel;
      };
      if (o.is_whole) {
#pragma GCC unroll kUnrolled
        for (int i = 0; i < complete * vectors; i++)
          store_vector(to(i), sums[i]);
      } else {
#pragma GCC unroll kUnrolled
        for (int i = 0; i < complete * vectors; i++)
          store_vector(to(i), sums[i], o.pixels[i % vectors]);
      }
      out += o.out_row;
    }
#pragma GCC unroll kUnrolled
    for (int i = 0; i < count; i++) {
      const int next = i + complete * vectors;
      sums[i] = next < count ? sums[next] : bias_of(i);
    }
  }
}

template <class C, bool slides>
constexpr auto gathers = table_of<kPlaneOutputs>([](auto outputs) {
  return table_of<kPlaneVectors>([](auto vectors) {
    constexpr int most = most_plane_vectors(decltype(outputs)::value);
    return &gather<
        C,
        slides,
        decltype(outputs)::value,
        std::min<int>(decltype(vectors)::value, most)>;
  });
});

} // namespace plane_kernels_detail

// Rows of outputs. At most kPlaneOutputs of them, or channels, at once, and at most
// most_plane_vectors of these vectors.
template <class C>
void gather_planes(const PlaneOperands<C>& o, bool slides, int64_t outputs) {
  using namespace plane_kernels_detail;
  (slides ? gathers<C, true> : gathers<C, false>)[outputs - 1][o.vectors - 1](o);
}

// Taps of a row that are summed at once: a pixel, a gradient of each output and a sum for each tap
// and output are in registers.
inline constexpr int kPlaneTaps = 7;
constexpr int most_plane_taps(int outputs) {
  return std::min(kPlaneTaps, (kRegisters - 2) / outputs - 1);
}

// A row of taps, the gradients of the same outputs, and the products of both, summed over pixels.
template <class C>
struct PlaneSums {
  const C* pixels; // of the first row
  const int64_t* taps;
  int64_t tap_count;
  int64_t row_pitch;
  const C* grads; // the same pixels of the first output
  int64_t grad_pitch, grad_step;
  int64_t rows, vectors;
  C* sums; // [tap][output][lane], added to
};

namespace plane_kernels_detail {

// The sum of tap t and output m is sums[t * outputs + m].
template <class C, int outputs, int taps>
void sum(const PlaneSums<C>& o) {
  constexpr int64_t n = kLanes<C>;
  constexpr int count = taps * outputs;
  const int64_t grad_step = o.grad_step;
  int64_t at[taps];
  std::copy_n(o.taps, taps, at);
  Vector<C> sums[count];
#pragma GCC unroll kUnrolled
  for (int i = 0; i < count; i++)
    sums[i] = load_vector(o.sums + i * n);
  for (int64_t row = 0; row < o.rows; row++) {
    const C *x = o.pixels + row * o.row_pitch, *grads = o.grads + row * o.grad_pitch;
    for (int64_t vector = 0; vector < o.vectors; vector++, x += n, grads += n) {
      Vector<C> grad[outputs];
#pragma GCC unroll kUnrolled
      for (int m = 0; m < outputs; m++)
        grad[m] = load_once(grads + m * grad_step);
#pragma GCC unroll kUnrolled
      for (int t = 0; t < taps; t++) {
        const auto pixel = load_once(x + at[t]);
#pragma GCC unroll kUnrolled
        for (int m = 0; m < outputs; m++) {
          const int i = t * outputs + m;
          sums[i] = multiply_add(pixel, grad[m], sums[i]);
        }
      }
    }
  }
#pragma GCC unroll kUnrolled
  for (int i = 0; i < count; i++)
    store_vector(o.sums + i * n, sums[i]);
}

template <class C>
constexpr auto plane_sums = table_of<kPlaneOutputs>([](auto outputs) {
  return table_of<kPlaneTaps>([](auto taps) {
    constexpr int most = most_plane_taps(decltype(outputs)::value);
    return &sum<C, decltype(outputs)::value, std::min<int>(decltype(taps)::value, most)>;
  });
});

} // namespace plane_kernels_detail

// At most most_plane_taps at once.
template <class C>
void sum_planes(const PlaneSums<C>& o, int64_t outputs) {
  plane_kernels_detail::plane_sums<C>[outputs - 1][o.tap_count - 1](o);
}

} // namespace torch_dnnl
