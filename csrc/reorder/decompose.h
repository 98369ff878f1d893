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

// [begin, end) in as few segments as possible: steps as large as they fit, from multiples of them.
inline Segments segments_of(const StepSizes& steps, int64_t begin, int64_t end) {
  Segments segments;
  while (begin < end) {
    size_t level = steps.size() - 1;
    while (begin % steps[level] != 0 || begin + steps[level] > end)
      level--;
    int64_t count = (end - begin) / steps[level];
    if (level + 1 < steps.size())
      count = std::min(count, (steps[level + 1] - begin % steps[level + 1]) / steps[level]);
    Segment segment{begin, {{steps[level], count}}};
    begin += count * steps[level];
    for (; level > 0; level--)
      segment.digits.push_back({steps[level - 1], steps[level] / steps[level - 1]});
    segments.push_back(std::move(segment));
  }
  return segments;
}

// The padding that follows the elements.
inline Segments padding_segments(const ReorderProblem& p, int64_t dim) {
  StepSizes steps{1};
  int64_t padded = 1;
  for (const ReorderProblem::Digit& digit : p.dst_layout) {
    if (digit.dim == dim) {
      steps.push_back(digit.step);
      padded *= digit.extent;
    }
  }
  return padded > p.size[dim] ? segments_of(sorted(std::move(steps)), p.size[dim], padded)
                              : Segments{};
}

// Where a coordinate of a dimension is. Of a step of the common digits, this is its stride.
inline Offsets offset_of(const ReorderProblem& p, int64_t dim, int64_t coordinate) {
  Offsets offset{};
  if (coordinate == 0)
    return offset;
  const auto value = [&](const ReorderProblem::Digit& digit) {
    return digit.dim == dim ? coordinate / digit.step % digit.extent : 0;
  };
  for (const ReorderProblem::Digit& digit : p.src_layout)
    offset[kSrc] += value(digit) * digit.stride;
  for (const ReorderProblem::Digit& digit : p.dst_layout) {
    const int64_t count = value(digit);
    offset[kDst] += count * digit.stride;
    offset[kAccumulate] += count * digit.accumulate_stride;
  }
  for (int array = 0; array < kAccumulate; array++) {
    const ReorderProblem::Operand& operand = p.operand[array];
    if (operand.data != nullptr)
      offset[array] = coordinate / operand.group[dim] * operand.stride[dim];
  }
  return offset;
}

// Axes are in the order of dst's memory.
inline void add_axis(Box& box, const Axis& axis) {
  const auto next =
      std::upper_bound(box.axes.begin(), box.axes.end(), axis, [](const Axis& a, const Axis& b) {
        return a.stride[kDst] > b.stride[kDst];
      });
  if (axis.extent > 1)
    box.axes.insert(next, axis);
}

inline void append(const ReorderProblem& p, int64_t dim, const Segment& segment, Box& box) {
  advance(box.offset, offset_of(p, dim, segment.begin), 1);
  for (const SegmentDigit& digit : segment.digits)
    add_axis(box, {digit.extent, offset_of(p, dim, digit.step)});
}

// A segment of the padding of `dim`, over the whole of every other dimension. Only dst matters.
inline Box padding_box(const ReorderProblem& p, int64_t dim, const Segment& segment) {
  const auto in_dst = [](int64_t offset) {
    Offsets offsets{};
    offsets[kDst] = offset;
    return offsets;
  };
  Box box{{}, in_dst(offset_of(p, dim, segment.begin)[kDst]), /*is_padding=*/true};
  for (const SegmentDigit& digit : segment.digits)
    add_axis(box, {digit.extent, in_dst(offset_of(p, dim, digit.step)[kDst])});
  for (const ReorderProblem::Digit& digit : p.dst_layout)
    if (digit.dim != dim)
      add_axis(box, {digit.extent, in_dst(digit.stride)});
  merge(box.axes);
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
      boxes *= segments_of(steps, 0, p.size[dim]).size();
  }
  return boxes <= kMaxBoxes;
}

// Padding comes last.
inline Boxes decompose(const ReorderProblem& p) {
  using namespace detail;
  Boxes boxes(1), padding;
  for (int64_t dim = 0; dim < p.dims; dim++) {
    const Segments segments = segments_of(common_steps(p, dim), 0, p.size[dim]);
    const size_t before = boxes.size();
    for (size_t i = 1; i < segments.size(); i++) {
      for (size_t b = 0; b < before; b++) {
        boxes.push_back(Box(boxes[b]));
        append(p, dim, segments[i], boxes.back());
      }
    }
    for (size_t b = 0; b < before; b++)
      append(p, dim, segments[0], boxes[b]);
    for (const Segment& segment : padding_segments(p, dim))
      padding.push_back(padding_box(p, dim, segment));
  }
  for (Box& box : boxes)
    merge(box.axes);
  boxes.append(padding.begin(), padding.end());
  return boxes;
}

} // namespace torch_dnnl::boxes
