// The boxes of a problem; what they are, box.h says.
#pragma once

#include <algorithm>
#include <utility>

#include "reorder/box.h"

namespace torch_dnnl::boxes {
namespace detail {

// More boxes than this do not come from formats that anybody uses; the reference is good enough.
inline constexpr size_t kMaxBoxes = 64;

struct SegmentDigit {
  int64_t step, extent;
};
// A part of one dimension: the coordinates begin + sum of digit * step.
struct Segment {
  int64_t begin;
  c10::SmallVector<SegmentDigit, 4> digits;
};
using StepSizes = c10::SmallVector<int64_t, 8>; // of the digits of one dimension, ascending
using Segments = c10::SmallVector<Segment, 4>;

inline StepSizes sorted(StepSizes steps) {
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

// The steps of the common digits.
inline StepSizes common_steps(const ReorderProblem& p, int64_t dim) {
  StepSizes steps{1};
  const auto add = [&](int64_t step) {
    if (step < p.size[dim])
      steps.push_back(step);
  };
  for (const ReorderProblem::Layout* layout : {&p.src_layout, &p.dst_layout}) {
    for (const ReorderProblem::Digit& digit : *layout)
      if (digit.dim == dim)
        add(digit.step);
  }
  for (int array = 0; array < kAccumulate; array++) {
    const ReorderProblem::Operand& operand = p.operand[array];
    if (operand.data != nullptr && operand.stride[dim] != 0)
      add(operand.group[dim]);
  }
  return steps.size() == 1 ? steps : sorted(std::move(steps));
}

inline bool is_chain(const StepSizes& steps) {
  for (size_t i = 1; i < steps.size(); i++)
    if (steps[i] % steps[i - 1] != 0)
      return false;
  return true;
}

// `count` steps of size steps[level], and the whole digits below.
inline Segment segment_of(const StepSizes& steps, int64_t begin, size_t level, int64_t count) {
  Segment segment{begin, {}};
  segment.digits.push_back({steps[level], count});
  for (; level > 0; level--)
    segment.digits.push_back({steps[level - 1], steps[level] / steps[level - 1]});
  return segment;
}

// [0, size): as many of the largest step as fit, then of the next one, and so on.
inline Segments value_segments(const StepSizes& steps, int64_t size) {
  Segments segments;
  int64_t begin = 0;
  for (size_t level = steps.size(); begin < size;) {
    level--;
    if (const int64_t count = (size - begin) / steps[level]; count > 0) {
      segments.push_back(segment_of(steps, begin, level, count));
      begin += count * steps[level];
    }
  }
  return segments;
}

// The padding that follows `size` elements: from the smallest step of dst up.
inline Segments padding_segments(const ReorderProblem& p, int64_t dim) {
  StepSizes steps{1};
  int64_t padded = 1;
  for (const ReorderProblem::Digit& digit : p.dst_layout) {
    if (digit.dim == dim) {
      steps.push_back(digit.step);
      padded *= digit.extent;
    }
  }
  Segments segments;
  if (padded > p.size[dim]) {
    steps = sorted(std::move(steps));
    steps.push_back(padded);
    for (int64_t begin = p.size[dim]; begin < padded;) {
      size_t level = 0;
      while (begin % steps[level + 1] == 0)
        level++;
      const int64_t count = (steps[level + 1] - begin % steps[level + 1]) / steps[level];
      segments.push_back(segment_of(steps, begin, level, count));
      begin += count * steps[level];
    }
  }
  return segments;
}

inline Axis axis_of(const ReorderProblem& p, int64_t dim, const SegmentDigit& digit) {
  Axis axis{digit.extent, {}};
  const auto is_part = [&](const ReorderProblem::Digit& whole) {
    return whole.dim == dim && whole.step <= digit.step && digit.step < whole.step * whole.extent;
  };
  for (const ReorderProblem::Digit& whole : p.src_layout)
    if (is_part(whole))
      axis.stride[kSrc] = digit.step / whole.step * whole.stride;
  for (const ReorderProblem::Digit& whole : p.dst_layout) {
    if (is_part(whole)) {
      axis.stride[kDst] = digit.step / whole.step * whole.stride;
      axis.stride[kAccumulate] = digit.step / whole.step * whole.accumulate_stride;
    }
  }
  for (int array = 0; array < kAccumulate; array++) {
    const ReorderProblem::Operand& operand = p.operand[array];
    if (operand.data != nullptr && operand.group[dim] <= digit.step)
      axis.stride[array] = digit.step / operand.group[dim] * operand.stride[dim];
  }
  return axis;
}

inline Offsets offset_of(const ReorderProblem& p, int64_t dim, int64_t begin) {
  Offsets offset{};
  if (begin == 0)
    return offset;
  const auto value = [&](const ReorderProblem::Digit& digit) {
    return digit.dim == dim ? begin / digit.step % digit.extent : 0;
  };
  for (const ReorderProblem::Digit& digit : p.src_layout)
    offset[kSrc] += value(digit) * digit.stride;
  for (const ReorderProblem::Digit& digit : p.dst_layout) {
    offset[kDst] += value(digit) * digit.stride;
    offset[kAccumulate] += value(digit) * digit.accumulate_stride;
  }
  for (int array = 0; array < kAccumulate; array++) {
    const ReorderProblem::Operand& operand = p.operand[array];
    if (operand.data != nullptr)
      offset[array] = begin / operand.group[dim] * operand.stride[dim];
  }
  return offset;
}

inline void append(const ReorderProblem& p, int64_t dim, const Segment& segment, Box& box) {
  advance(box.offset, offset_of(p, dim, segment.begin), 1);
  for (const SegmentDigit& digit : segment.digits)
    if (digit.extent > 1)
      box.axes.push_back(axis_of(p, dim, digit));
}

inline void sort_and_merge(Box& box) {
  std::stable_sort(box.axes.begin(), box.axes.end(), [](const Axis& a, const Axis& b) {
    return a.stride[kDst] > b.stride[kDst];
  });
  merge(box.axes);
}

// A segment of the padding of `dim`, over the whole of every other dimension.
inline Box padding_box(const ReorderProblem& p, int64_t dim, const Segment& segment) {
  Box box;
  append(p, dim, segment, box);
  for (const ReorderProblem::Digit& digit : p.dst_layout) {
    if (digit.dim != dim && digit.extent > 1) {
      box.axes.push_back({digit.extent, {}});
      box.axes.back().stride[kDst] = digit.stride;
    }
  }
  // Only dst matters.
  const auto keep_dst = [](Offsets& of) {
    const int64_t dst = of[kDst];
    of = {};
    of[kDst] = dst;
  };
  keep_dst(box.offset);
  for (Axis& axis : box.axes)
    keep_dst(axis.stride);
  sort_and_merge(box);
  return box;
}

} // namespace detail

// Whether the digits have a common refinement, in a reasonable number of boxes.
inline bool has_boxes(const ReorderProblem& p) {
  using namespace detail;
  size_t boxes = 1;
  for (int64_t dim = 0; dim < p.dims; dim++) {
    const StepSizes steps = common_steps(p, dim);
    if (!is_chain(steps))
      return false;
    if (steps.size() > 1)
      boxes *= value_segments(steps, p.size[dim]).size();
  }
  return boxes <= kMaxBoxes;
}

// The axes are in the order of dst's memory.
inline Boxes decompose(const ReorderProblem& p) {
  using namespace detail;
  Boxes boxes;
  boxes.values.emplace_back();
  for (int64_t dim = 0; dim < p.dims; dim++) {
    const Segments segments = value_segments(common_steps(p, dim), p.size[dim]);
    const size_t before = boxes.values.size();
    for (size_t i = 1; i < segments.size(); i++) {
      for (size_t b = 0; b < before; b++) {
        boxes.values.push_back(Box(boxes.values[b]));
        append(p, dim, segments[i], boxes.values.back());
      }
    }
    for (size_t b = 0; b < before; b++)
      append(p, dim, segments[0], boxes.values[b]);
    for (const Segment& segment : padding_segments(p, dim))
      boxes.padding.push_back(padding_box(p, dim, segment));
  }
  for (Box& box : boxes.values)
    sort_and_merge(box);
  return boxes;
}

} // namespace torch_dnnl::boxes
