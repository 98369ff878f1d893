// Lines of inputs as products read them: [pixel][channel], in the type of products, with what
// stands for 0 where pads are.
#pragma once

#include "conv/cpu/shared/products/products.h"

namespace torch_dnnl {

// A part of a line of an image: `pixels` from `first` on, `step` apart; channels of a group.
// Pixels outside the image are pads.
struct LineOfImage {
  const void* data; // of the first channel and of pixel 0
  int64_t channels, channel_stride;
  int64_t first, pixels, step;
  int64_t size, pixel_stride; // of the image
};

// How bytes become what is multiplied: as they are (signed ones 128 more), or widened without the
// zero point.
template <class To>
struct IntegerLines {
  using Element = uint8_t;
  bool is_signed;
  int zero_point;

  // Whether a line is what lies in the image.
  bool are_same() const {
    return sizeof(To) == 1 && !is_signed;
  }
  To pad() const {
    return sizeof(To) == 1 ? static_cast<To>(zero_point + (is_signed ? 128 : 0)) : To(0);
  }
  // To `to`, with `pitch` values from a pixel to the next. `bytes`: memory of as many bytes.
  void copy(const LineOfImage& line, int64_t pitch, uint8_t* bytes, To* to) const;
};

// Floating-point numbers as they are.
template <class T>
struct FloatLines {
  using Element = T;

  bool are_same() const {
    return true;
  }
  T pad() const {
    return T(0);
  }
  void copy(const LineOfImage& line, int64_t pitch, T* /*elements*/, T* to) const;
};

} // namespace torch_dnnl
