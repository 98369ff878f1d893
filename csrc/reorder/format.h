// Format tags: how the elements of a tensor are laid out in memory, in oneDNN's notation.
//
// The letters in front give the order of the dimensions, outermost first; an upper-case letter
// marks a dimension that is blocked. The blocks follow as a size and a letter each, outermost
// first. "aBcd16b" are the dimensions a, b / 16, c, d and then 16 elements of b. Letters are
// generic (a is the first dimension, b the second, ...) or name dimensions: "nChw16c" is the same
// tag for activations, "OIhw16i16o" is one for weights.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "reorder/problem.h"

namespace torch_dnnl {

struct Format {
  struct Block {
    int64_t dim, size;
  };
  c10::SmallVector<int64_t, 6> outer; // the dimensions, outermost first
  c10::SmallVector<Block, 4> inner;   // the blocks, outermost first

  int64_t rank() const {
    return static_cast<int64_t>(outer.size());
  }

  bool blocked() const {
    return !inner.empty();
  }

  bool blocked(int64_t dim) const {
    return std::any_of(inner.begin(), inner.end(), [&](const Block& b) { return b.dim == dim; });
  }

  // What the padded size of a dimension is a multiple of.
  int64_t block_of(int64_t dim) const {
    int64_t product = 1;
    for (const Block& block : inner)
      if (block.dim == dim)
        product *= block.size;
    return product;
  }

  // The generic tag.
  std::string tag() const {
    std::string text;
    for (const int64_t dim : outer)
      text += static_cast<char>((blocked(dim) ? 'A' : 'a') + dim);
    for (const Block& block : inner)
      text += std::to_string(block.size) + static_cast<char>('a' + block.dim);
    return text;
  }
};

namespace format_detail {

// The dimensions of a tensor in logical order, for each kind of tensor that has named tags.
// clang-format off
inline constexpr std::string_view logical_orders[] = {
    "x", "nc", "ncw", "nchw", "ncdhw",                       // activations
    "oi", "oiw", "oihw", "oidhw", "goiw", "goihw", "goidhw", // weights
    "tn", "tnc", "ldnc", "ldigo", "ldio", "ldgo"};           // of recurrent networks
// clang-format on

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

inline bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

inline char lower(char c) {
  return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
}

// Reads one tag; what is wrong with it becomes a ValueError.
struct Parser {
  const char* op;
  const char* argument;
  std::string_view tag;

  Format parse() const {
    const size_t rank = count_outer();
    const std::string order = logical_order(rank);
    Format format;
    for (size_t i = 0; i < rank; i++)
      format.outer.push_back(static_cast<int64_t>(order.find(lower(tag[i]))));
    for (size_t position = rank; position < tag.size();)
      format.inner.push_back(block(position, order, format));
    for (size_t i = 0; i < rank; i++)
      if (is_upper(tag[i]) && tag.find(lower(tag[i]), rank) == tag.npos)
        fail(i, "is upper case, but no block of that dimension follows");
    return format;
  }

  template <class... Reason>
  [[noreturn]] void reject(const Reason&... reason) const {
    TORCH_CHECK_VALUE(
        false,
        Expected(op)
            << argument
            << " to be a oneDNN format tag such as \"nhwc\", \"acdb\" or \"aBcd16b\", got \"" << tag
            << "\": ",
        reason...);
  }

  template <class... Reason>
  [[noreturn]] void fail(size_t position, const Reason&... reason) const {
    size_t bytes = 1; // more in a character that is not ASCII
    while (position + bytes < tag.size() && (tag[position + bytes] & 0xC0) == 0x80)
      bytes++;
    reject("'", tag.substr(position, bytes), "' (character ", position + 1, ") ", reason...);
  }

  // How many letters there are in front.
  size_t count_outer() const {
    size_t rank = 0;
    for (; rank < tag.size() && !is_digit(tag[rank]); rank++) {
      const char letter = lower(tag[rank]);
      if (letter < 'a' || letter > 'z')
        fail(rank, "is neither a letter nor a digit");
      for (size_t i = 0; i < rank; i++)
        if (lower(tag[i]) == letter)
          fail(rank, "stands for a dimension that was there before");
    }
    if (rank == 0)
      reject("it does not start with a letter");
    if (rank > kMaxDims)
      fail(kMaxDims, "is one dimension too many, ", kMaxDims, " are possible");
    return rank;
  }

  // The letters of the dimensions in logical order.
  std::string logical_order(size_t rank) const {
    std::string letters;
    for (const char c : tag.substr(0, rank))
      letters += lower(c);
    // No name of a dimension is among these, and every generic tag has an a.
    if (letters.find_first_of("abef") != letters.npos) {
      const std::string order = std::string("abcdefghijkl").substr(0, rank);
      const size_t wrong = letters.find_first_not_of(order);
      if (wrong != letters.npos)
        fail(wrong, "is not a dimension of a ", rank, "-D tensor, which are \"", order, "\"");
      return order;
    }
    const auto has_first = [&](std::string_view order, size_t count) {
      return std::string_view(letters).substr(0, count).find_first_not_of(order) == letters.npos;
    };
    size_t understood = 0;
    for (const std::string_view order : logical_orders) {
      if (order.size() == rank && has_first(order, rank))
        return std::string(order);
      while (understood < rank && has_first(order, understood + 1))
        understood++;
    }
    if (understood < rank)
      fail(understood, "is not the name of a dimension that goes with the ones before it");
    std::string_view nearest;
    for (const std::string_view order : logical_orders)
      if (has_first(order, rank) && (nearest.empty() || order.size() < nearest.size()))
        nearest = order;
    reject("'", nearest.substr(nearest.find_first_not_of(letters), 1), "' is missing");
  }

  // The block at `position`, which moves behind it.
  Format::Block block(size_t& position, const std::string& order, const Format& format) const {
    if (!is_digit(tag[position]))
      fail(position, "has no block size before it");
    if (tag[position] == '0')
      fail(position, "does not start a block size");
    int64_t size = 0;
    for (; position < tag.size() && is_digit(tag[position]); position++) {
      size = size * 10 + (tag[position] - '0');
      if (size > std::numeric_limits<int32_t>::max())
        fail(position, "makes the block size larger than an int32");
    }
    if (position == tag.size())
      fail(position - 1, "is not followed by the dimension of the block");
    const size_t dim = order.find(lower(tag[position]));
    if (dim == order.npos)
      fail(position, "is not one of the dimensions in front");
    if (is_upper(tag[position]))
      fail(position, "is upper case; only the dimensions in front are");
    if (tag.substr(0, order.size()).find(order[dim]) != tag.npos)
      fail(position, "is blocked, so it must be upper case in front");
    if (format.inner.size() == kMaxDigits - kMaxDims)
      fail(position, "is one block too many, ", kMaxDigits - kMaxDims, " are possible");
    if (format.block_of(dim) * size > std::numeric_limits<int32_t>::max())
      fail(position, "has blocks that multiply to more than an int32");
    position++;
    return {static_cast<int64_t>(dim), size};
  }
};

} // namespace format_detail

// The format that a tag names; ValueError, with the character that is wrong, if none.
inline Format parse_format(const char* op, const char* argument, std::string_view tag) {
  return format_detail::Parser{op, argument, tag}.parse();
}

// The tag of a contiguous tensor: "abcd" for 4 dimensions.
inline std::string contiguous_tag(int64_t rank) {
  Format format;
  for (int64_t dim = 0; dim < rank; dim++)
    format.outer.push_back(dim);
  return format.tag();
}

// The tag of tensors that have one more dimension, outermost in memory and logically first.
inline std::string batched_tag(const char* op, const char* argument, std::string_view tag) {
  Format format = parse_format(op, argument, tag);
  for (int64_t& dim : format.outer)
    dim++;
  for (Format::Block& block : format.inner)
    block.dim++;
  format.outer.insert(format.outer.begin(), 0);
  return format.tag();
}

} // namespace torch_dnnl
