// Resampling of a part: which rows of an image go with which rows of the resized image, and the
// axes of a call that has one part of both.
#pragma once

#include <algorithm>

#include "core/expected.h"
#include "resample/arguments.h"
#include "resample/axis_table.h"

namespace torch_dnnl {

// The outputs of a whole axis that are made of these inputs.
inline Range rows_made(const AxisSpec& axis, const Range& inputs) {
  const Range readers = readers_of(
      inputs, axis.out, is_flipped(axis), [&](int64_t o) { return range_of_row(axis, o); });
  return inputs.count() > 0 && readers.count() > 0 ? readers : Range{0, 0};
}

// The inputs that these outputs of a whole axis are made of. Rows outside of a region have none.
inline Range rows_read(const AxisSpec& axis, const Range& outputs) {
  const Range made = rows_made(axis, {0, axis.in});
  const Range some{std::max(outputs.begin, made.begin), std::min(outputs.end, made.end)};
  if (some.count() <= 0)
    return {0, 0};
  const Range first = range_of_row(axis, some.begin), last = range_of_row(axis, some.end - 1);
  return {std::min(first.begin, last.begin), std::max(first.end, last.end)};
}

// Makes an axis the part of an axis that the call says. Rows outside of the parts count as 0, so
// that the derivatives of a part are those of this call alone. Where they would count as rows
// outside of a region, they have to be there.
inline void set_window(AxisSpec& axis, const ResampleArguments& call, int64_t d) {
  const size_t spatial = call.window.size() / 4;
  const auto number = [&](size_t list) { return call.window[list * spatial + d].expect_int(); };
  AxisSpec part = axis;
  part.whole_in = number(0), part.in_begin = number(1);
  part.whole_out = number(2), part.out_begin = number(3);
  if (part.whole_in == axis.in && part.whole_out == axis.out)
    return;
  if (call.extrapolation_value != 0) {
    const Range given{part.in_begin, part.in_begin + axis.in};
    const Range read = rows_read(whole_axis(part), {part.out_begin, part.out_begin + axis.out});
    TORCH_CHECK_VALUE(
        read.count() == 0 || (given.begin <= read.begin && read.end <= given.end),
        Expected("resample") << "window to have rows " << read.begin << " to " << read.end
                             << " of the source in spatial dimension " << d << ", got rows "
                             << given.begin << " to " << given.end);
  }
  axis = part;
}

} // namespace torch_dnnl
