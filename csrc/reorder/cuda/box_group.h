// Boxes that one launch can cover: their axes are the same but for how many elements they have. All
// boxes of a problem are, if they have the padding of their own blocks.
//
// Example: abcd of [2, 20, 5, 7] to aBcd16b is two boxes of 16 channels, of which the second one
// has 4 that are not padding. In decompose.h it is three, of 16, 4 and 12.
#pragma once

#include <optional>

#include "reorder/decompose.h"

namespace torch_dnnl::boxes {

struct BoxGroup {
  // Of an axis, the elements in dst and those before its padding.
  struct Range {
    int64_t extent = 1, filled = 1;
  };
  struct Member {
    c10::SmallVector<Range, 8> ranges; // of the axes
    Offsets offset{};
  };

  Axes axes; // outermost first; an extent is the most that a member has
  c10::SmallVector<Member, 1> members;

  BoxGroup() : members(1) {}

  explicit BoxGroup(const Box& box) : axes(box.axes), members(1) {
    members[0].offset = box.offset;
    for (const Axis& axis : axes)
      members[0].ranges.push_back({axis.extent, axis.extent});
  }

  // Elements of a member that had the most of each axis.
  int64_t most_elements() const {
    return Box{axes}.elements();
  }
};

namespace detail {

using Members = c10::SmallVector<BoxGroup::Member, 4>;

inline int64_t padded_size(const ReorderProblem& p, int64_t dim) {
  int64_t padded = 1;
  for (const ReorderProblem::Digit& digit : p.dst_layout)
    padded *= digit.dim == dim ? digit.extent : 1;
  return padded;
}

// The steps of the common digits of a dimension and its padding.
inline StepSizes padded_steps(const ReorderProblem& p, int64_t dim) {
  StepSizes steps = common_steps(p, dim);
  for (const ReorderProblem::Digit& digit : p.dst_layout)
    if (digit.dim == dim && digit.step < padded_size(p, dim))
      steps.push_back(digit.step);
  return sorted(std::move(steps));
}

// Up to where the outermost digit of a segment can count.
inline int64_t most_of_digit(const StepSizes& steps, const Segment& segment, int64_t end) {
  const size_t next = segment.digits.size();
  int64_t left = end - segment.begin;
  if (next < steps.size())
    left = std::min(left, steps[next] - segment.begin % steps[next]);
  return left / segment.digits[0].step;
}

// Parts of one dimension with its padding, with a range for each step. The last one that has
// elements takes what its outermost digit can count of the padding.
inline Members parts_of(const ReorderProblem& p, int64_t dim, const StepSizes& steps) {
  const int64_t size = p.size[dim], padded = padded_size(p, dim);
  Members parts;
  const auto add = [&](const Segment& segment, int64_t extent, int64_t filled) {
    BoxGroup::Member part{{}, offset_of(p, dim, segment.begin)};
    for (size_t i = segment.digits.size() - 1; i > 0; i--)
      part.ranges.push_back({segment.digits[i].extent, segment.digits[i].extent});
    part.ranges.push_back({extent, filled});
    part.ranges.resize(steps.size());
    parts.push_back(std::move(part));
    return segment.begin + extent * segment.digits[0].step;
  };
  int64_t end = 0;
  for (const Segment& segment : segments_of(steps, 0, size)) {
    const auto [step, count] = segment.digits[0];
    const bool is_last = segment.begin + count * step == size;
    end = add(segment, is_last ? most_of_digit(steps, segment, padded) : count, count);
  }
  for (const Segment& segment : segments_of(steps, end, padded))
    add(segment, segment.digits[0].extent, 0);
  return parts;
}

// Splits all members by a dimension.
inline void append(const ReorderProblem& p, int64_t dim, const StepSizes& steps, BoxGroup& group) {
  const Members parts = parts_of(p, dim, steps);
  decltype(group.members) members;
  for (const BoxGroup::Member& member : group.members) {
    for (const BoxGroup::Member& part : parts) {
      members.push_back(member);
      advance(members.back().offset, part.offset, 1);
    }
  }
  for (size_t level = 0; level < steps.size(); level++) {
    const auto has_range = [&](const BoxGroup::Member& part) {
      return part.ranges[level].extent > 1 || part.ranges[level].filled < 1;
    };
    if (std::none_of(parts.begin(), parts.end(), has_range))
      continue;
    // Axes are in the order of dst's memory.
    const Axis axis{1, offset_of(p, dim, steps[level])};
    const auto next = std::find_if(group.axes.begin(), group.axes.end(), [&](const Axis& other) {
      return other.stride[kDst] < axis.stride[kDst];
    });
    const auto place = next - group.axes.begin();
    group.axes.insert(next, axis);
    for (size_t m = 0; m < members.size(); m++) {
      auto& ranges = members[m].ranges;
      ranges.insert(ranges.begin() + place, parts[m % parts.size()].ranges[level]);
    }
  }
  group.members = std::move(members);
}

// Whether axis `outer` goes on where `inner` ends, in every array of every member.
inline bool is_one_axis(const BoxGroup& group, size_t outer, size_t inner) {
  return std::all_of(group.members.begin(), group.members.end(), [&](const auto& member) {
    const auto [extent, filled] = member.ranges[inner];
    bool same = filled == extent;
    for (int a = 0; a < kArrays; a++)
      same &= group.axes[outer].stride[a] == extent * group.axes[inner].stride[a];
    return same || member.ranges[outer].extent == 1;
  });
}

// As of a single box (box.h).
inline void merge(BoxGroup& group) {
  if (group.axes.empty())
    group = BoxGroup(Box{{{1, {}}}, group.members[0].offset});
  size_t last = group.axes.size() - 1;
  for (size_t i = last; i-- > 0;) {
    const bool same = is_one_axis(group, i, last);
    if (!same)
      group.axes[--last] = group.axes[i];
    for (BoxGroup::Member& member : group.members) {
      const BoxGroup::Range range = member.ranges[i];
      BoxGroup::Range& merged = member.ranges[last];
      merged = same ? BoxGroup::Range{range.extent * merged.extent, range.filled * merged.filled}
                    : range;
    }
  }
  group.axes.erase(group.axes.begin(), group.axes.begin() + last);
  for (BoxGroup::Member& member : group.members) {
    member.ranges.erase(member.ranges.begin(), member.ranges.begin() + last);
    for (size_t a = 0; a < group.axes.size(); a++)
      group.axes[a].extent = std::max(group.axes[a].extent, member.ranges[a].extent);
  }
}

} // namespace detail

// None if the digits of the padding have no common refinement with the others.
inline std::optional<BoxGroup> group_boxes(const ReorderProblem& p) {
  BoxGroup group;
  for (int64_t dim = 0; dim < p.dims; dim++) {
    const detail::StepSizes steps = detail::padded_steps(p, dim);
    if (!detail::is_chain(steps))
      return std::nullopt;
    detail::append(p, dim, steps, group);
  }
  detail::merge(group);
  return group;
}

} // namespace torch_dnnl::boxes
