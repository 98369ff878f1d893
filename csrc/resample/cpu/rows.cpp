#include "resample/cpu/rows.h"

#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {
namespace {

// Elements of a piece of an output row: its source rows fit in the first-level cache.
constexpr int64_t kPiece = 2048;
// Elements of a line that has its place on the stack.
constexpr int64_t kShortLine = 512;
// W first: elements of an output row, of which kMaxRows are kept, in the second-level cache.
constexpr int64_t kLongestRow = 16384;
// Operations below which a thread costs more than it brings.
constexpr int64_t kTaskOperations = 16384;
// Pixels with few channels are treated as a row of elements, unless its taps grow beyond this.
constexpr int64_t kMaxTaps = int64_t(1) << 16;
// A tap of a gathered element takes as long as this many of an element of a whole row (measured).
constexpr double kGatherCost = 2.5;
constexpr double kByteGatherCost = 1.5; // of a row of bytes
// Pixels of many channels: so many products take less time than a pass that results would share
// (x2, bilinear: 0.52 ms instead of 0.70).
constexpr int64_t kFewProducts = 4;

bool is_step(const int64_t* size, const int64_t* stride, int64_t step) {
  return size[2] == 1 || stride[4] == step;
}

bool is_planar(const ResampleProblem& p) {
  return is_step(p.src_size, p.src_stride, 1) && is_step(p.dst_size, p.dst_stride, 1);
}

bool is_interleaved(const ResampleProblem& p) {
  return p.src_stride[1] == 1 && p.dst_stride[1] == 1 && is_step(p.src_size, p.src_stride, p.c) &&
      is_step(p.dst_size, p.dst_stride, p.c);
}

// E: the elements of a source row that the W taps are applied to. To move them, and compute
// nothing, E may be any unsigned integer of the images' size.
template <class E>
class Rows {
 public:
  using C = WeightOf<E>;

  struct Passes {
    using Add =
        void (*)(const void* const*, const C*, int64_t count, bool first, int64_t n, void*, Target);
    using Gather = void (*)(const E*, const Taps<C>&, int64_t begin, int64_t n, E, void*, Target);
    using Sum = void (*)(
        const E*,
        const HostTable<C>&,
        int64_t channels,
        int64_t begin,
        int64_t n,
        E,
        void*,
        Target);
    using SumRows = void (*)(
        const void* const*,
        const C*,
        int64_t count,
        const HostTable<C>&,
        int64_t channels,
        int64_t begin,
        int64_t n,
        C,
        void*,
        Target);
    using GatherRows = void (*)(
        const void* const*,
        const C*,
        const Taps<C>&,
        int64_t begin,
        int64_t n,
        C,
        void*,
        Target);
    Add add, add_last;          // src to E, E to dst; null where rows are only moved
    Gather gather, gather_last; // E to E, E to dst
    Sum sum, sum_last;          // E to E, E to dst
    SumRows sum_rows;           // src to dst; null where their types differ
    GatherRows gather_rows;     // the same
  };

  Rows(const ResampleProblem& p, const Tables<C>& tables, Passes passes)
      : p_(p),
        d_(*tables[0]),
        h_(*tables[1]),
        w_(*tables[2]),
        passes_(passes),
        channels_(is_interleaved(p) ? p.c : 1),
        src_bytes_(c10::elementSize(p.src_dtype)),
        dst_bytes_(c10::elementSize(p.dst_dtype)),
        src_step_d_(p.src_stride[2] * src_bytes_),
        src_step_h_(p.src_stride[3] * src_bytes_),
        src_step_w_(p.src_stride[4] * src_bytes_),
        dst_step_h_(p.dst_stride[3] * dst_bytes_),
        dst_step_w_(p.dst_stride[4] * dst_bytes_),
        src_is_elements_(
            std::is_unsigned_v<E> || p.src_dtype == c10::CppTypeToScalarType<C>::value),
        empty_(empty_value()) {
    const int64_t elements = p.n * p.c * p.dst_size[0] * p.dst_size[1] * p.dst_size[2];
    target_ = elements * dst_bytes_ > kStreamedImageBytes ? Target::stream : Target::image;
    int64_t last = (p.n - 1) * p.src_stride[0] + (p.c - 1) * p.src_stride[1];
    for (int a = 0; a < 3; a++)
      last += (p.src_size[a] - 1) * p.src_stride[2 + a];
    src_end_ = static_cast<const char*>(p.src) + (last + 1) * src_bytes_;
    in_one_pass_ = prefers_one_pass();
    if (!in_one_pass_ && can_gather_two_rows()) {
      taps_ = cached_taps(tables[2], channels_, Row::read);
      in_one_pass_ = can_gather_rows(taps_->window);
    }
    w_first_ = !in_one_pass_ && (takes_bytes(tables[2]) || prefers_w_first(kGatherCost));
    if (!has_wide_pixels() && !in_one_pass_ && !from_bytes_) {
      const bool from_image = src_is_elements_ && (w_first_ || (d_.copies && h_.copies));
      taps_ = cached_taps(tables[2], channels_, from_image ? Row::read : Row::written);
    }
    cut_pieces();
  }

  // A task is a piece of an output row. A thread has tasks of neighbouring rows.
  void run() const {
    const int64_t pieces = pieces_.size(), rows = p_.dst_size[1], planes = p_.dst_size[0];
    const int64_t images = channels_ == 1 ? p_.c : 1; // of a sample
    const int64_t tasks = p_.n * images * planes * rows * pieces;
    const int64_t operations = pieces_[0].size * channels_ * (d_.width * h_.width + w_.width + 2);
    at::parallel_for(0, tasks, kTaskOperations / operations + 1, [&](int64_t begin, int64_t end) {
      Scratch scratch;
      int64_t rest = begin;
      const auto next = [&](int64_t count) {
        const int64_t index = rest % count;
        rest /= count;
        return index;
      };
      int64_t piece = next(pieces), h = next(rows), d = next(planes), c = next(images), n = rest;
      const int64_t above = begin + pieces; // from here on this thread made the row above, too
      while (begin < end) {
        const Plane plane = plane_of(n, c, d);
        if (w_first_) { // in one piece
          const int64_t first = h;
          h = std::min(rows, first + end - begin);
          begin += h - first;
          compute_w_first(plane, first, h, scratch);
        }
        for (; h < rows && begin < end; h++, piece = 0) {
          const bool repeats = passes_.add == nullptr && begin >= above && repeats_row(h);
          for (; piece < pieces && begin < end; piece++, begin++)
            compute(plane, h, pieces_[piece], repeats, scratch);
        }
        h = 0;
        if (++d == planes) {
          d = 0;
          if (++c == images)
            c = 0, n++;
        }
      }
      if (target_ == Target::stream)
        finish_streaming();
    });
  }

 private:
  struct Piece {
    int64_t begin, size; // of an output row
    int64_t low, high;   // what it reads of a source row
  };
  // An output plane, and the first of the source planes that it is made of.
  struct Plane {
    const char* src;
    char* dst;
    const C* weights;
    int64_t start, count;
  };
  // What an output row is made of: rows of a grid of `planes` x `rows`, and the weight of each.
  struct Sources {
    const char* first;
    int64_t planes, rows;
    const C *plane_weights, *row_weights;
  };
  struct Scratch {
    alignas(64) C short_line[kShortLine]; // of small images: an allocation would take longer
    std::vector<C, VectorAllocator<C>> long_line;
    // W first: source rows with the taps applied, and which ones they are.
    std::vector<C, VectorAllocator<C>> slots;
    const char* source[kMaxRows] = {};
  };

  void cut_pieces() {
    int64_t width = std::max<int64_t>(1, kPiece / channels_);
    if (w_first_) {
      width = p_.dst_size[2];
    } else if (taps_ != nullptr) {
      width = std::max(width / kLanes<E>, int64_t(1)) * kLanes<E>; // whole blocks of taps
    }
    const auto end_of = [&](int64_t o) { return w_.start[o] + w_.count[o]; };
    for (int64_t begin = 0; begin < p_.dst_size[2]; begin += width) {
      const int64_t size = std::min(width, p_.dst_size[2] - begin);
      // Rows of the table are in order, or in reverse order.
      const int64_t one = begin, other = begin + size - 1;
      const int64_t low = std::min({w_.start[one], w_.start[other], w_.in - 1});
      const int64_t high = std::max({end_of(one), end_of(other), low + 1});
      // `low` is a whole number of vectors, as the bases of the taps are.
      pieces_.push_back({begin, size, low / kLanes<E> * kLanes<E>, high});
    }
  }

  // Whether the W taps are better applied to source rows, at a cost of `gather_cost`, and the rows
  // added up then. A source row serves several output rows when the image grows.
  bool prefers_w_first(double gather_cost) const {
    const int64_t most = d_.width * h_.width;
    if (passes_.add == nullptr || w_.has_empty_rows || most == 1 || most > kMaxRows ||
        w_.out * channels_ > kLongestRow)
      return false;
    const auto size = [](int64_t n) { return static_cast<double>(n); };
    const double taps = size(w_.width) * size(w_.out), rows = size(most);
    const double sources_per_row = size(h_.in) / size(h_.out);
    return sources_per_row * gather_cost * taps + rows * size(w_.out) <
        kGatherCost * taps + rows * size(w_.in);
  }

  // Whether the W taps are better applied to source rows of bytes, and can be.
  bool takes_bytes(const SharedTable<C>& table) {
    if constexpr (std::is_same_v<E, float> && ByteWindow::kBytes > 0) {
      if (p_.src_dtype == at::kByte && !has_wide_pixels() && prefers_w_first(kByteGatherCost)) {
        taps_ = cached_taps(table, channels_, Row::bytes);
        from_bytes_ = taps_->window == Window::bytes;
      }
    }
    return from_bytes_;
  }

  // Whether a pixel is made of vectors of its own.
  bool has_wide_pixels() const {
    return channels_ > 1 &&
        (channels_ >= 2 * kLanes<E> || w_.width * w_.out * channels_ > kMaxTaps);
  }

  // Whether rows of pixels with few channels may be added up and their taps applied in registers:
  // what is written to a line and read at once has to wait for the stores before it.
  bool can_gather_two_rows() const {
    return LanesWindow<1, E>::is_loaded && passes_.gather_rows != nullptr && !has_wide_pixels() &&
        d_.width == 1 && h_.width == 2 && w_.width == 2;
  }

  // Whether the rows are better added up tap by tap, without a line between the passes: where
  // products are few, or hardly an element of the line would be read twice.
  bool prefers_one_pass() const {
    const int64_t rows = d_.width * h_.width;
    return passes_.sum_rows != nullptr && has_wide_pixels() && rows <= kMaxRows &&
        (rows * w_.width <= kFewProducts || w_.out * w_.width <= w_.in + w_.in / 2);
  }

  Plane plane_of(int64_t n, int64_t c, int64_t d) const {
    const int64_t src =
        n * p_.src_stride[0] + c * p_.src_stride[1] + d_.start[d] * p_.src_stride[2];
    const int64_t dst = n * p_.dst_stride[0] + c * p_.dst_stride[1] + d * p_.dst_stride[2];
    return {
        static_cast<const char*>(p_.src) + src * src_bytes_,
        static_cast<char*>(p_.dst) + dst * dst_bytes_,
        &d_.weights[d * d_.width],
        d_.start[d],
        d_.count[d]};
  }

  // Whether output row h is made of the same source rows as the one above it.
  bool repeats_row(int64_t h) const {
    return h > 0 && h_.start[h] == h_.start[h - 1] && h_.count[h] == h_.count[h - 1];
  }

  // A piece of output row h. `repeats`: rows are moved, and it is that of the row above.
  void
  compute(const Plane& plane, int64_t h, const Piece& piece, bool repeats, Scratch& scratch) const {
    char* dst = plane.dst + h * dst_step_h_ + piece.begin * dst_step_w_;
    const int64_t n = piece.size * channels_;
    if (repeats && target_ != Target::stream)
      return copy_row(dst - dst_step_h_, dst, n * dst_bytes_);
    const Sources sources{
        plane.src + h_.start[h] * src_step_h_ + piece.low * src_step_w_,
        plane.count,
        h_.count[h],
        plane.weights,
        &h_.weights[h * h_.width]};
    if (sources.planes * sources.rows == 0)
      return fill(dst, n);
    if (in_one_pass_ && add_in_registers(sources, piece, dst))
      return;
    const E* line = passes_.add == nullptr ? elements_of(sources.first, piece, scratch)
                                           : added_rows(sources, piece, scratch);
    apply_taps(line, piece, dst, true);
  }

  // W first: the output rows [begin, end).
  void compute_w_first(const Plane& plane, int64_t begin, int64_t end, Scratch& scratch) const {
    const int64_t n = p_.dst_size[2] * channels_, planes = plane.count;
    const void* rows[kMaxRows];
    C weights[kMaxRows];
    for (int64_t h = begin; h < end; h++) {
      char* dst = plane.dst + h * dst_step_h_;
      const int64_t count = h_.count[h];
      if (planes * count == 0) {
        fill(dst, n);
        continue;
      }
      if (h == begin || !repeats_row(h))
        find_rows(plane, h, rows, scratch);
      const C* row_weights = &h_.weights[h * h_.width];
      for (int64_t i = 0; i < planes; i++) {
        for (int64_t j = 0; j < count; j++)
          weights[i * count + j] = plane.weights[i] * row_weights[j];
      }
      passes_.add_last(rows, weights, planes * count, true, n, dst, target_);
    }
  }

  // f(row, weight)
  template <class F>
  void for_each_row(const Sources& sources, const F& f) const {
    for (int64_t i = 0; i < sources.planes; i++) {
      const char* row = sources.first + i * src_step_d_;
      for (int64_t j = 0; j < sources.rows; j++, row += src_step_h_)
        f(row, sources.plane_weights[i] * sources.row_weights[j]);
    }
  }

  // `line`: from piece.low on.
  void apply_taps(const E* line, const Piece& piece, void* to, bool last) const {
    const Target target = last ? target_ : Target::line;
    line -= piece.low * channels_;
    if (taps_ != nullptr) {
      (last ? passes_.gather_last : passes_.gather)(
          line, *taps_, piece.begin * channels_, piece.size * channels_, empty_, to, target);
    } else {
      (last ? passes_.sum_last : passes_.sum)(
          line, w_, channels_, piece.begin, piece.size, empty_, to, target);
    }
  }

  // False if these rows need a line: windows of several pixels would reach beyond the image, or one
  // row makes up a result at the border.
  bool add_in_registers(const Sources& sources, const Piece& piece, char* dst) const {
    const void* rows[kMaxRows];
    C weights[kMaxRows];
    int64_t count = 0;
    const char* last = nullptr;
    for_each_row(sources, [&](const char* row, C weight) {
      rows[count] = row - piece.low * src_step_w_, weights[count++] = weight;
      last = row;
    });
    const auto empty = static_cast<C>(p_.extrapolation_value);
    if (taps_ == nullptr) {
      passes_.sum_rows(
          rows, weights, count, w_, channels_, piece.begin, piece.size, empty, dst, target_);
      return true;
    }
    if (count != 2 || !has_slack(last, (piece.high - piece.low) * channels_))
      return false;
    const int64_t begin = piece.begin * channels_, n = piece.size * channels_;
    passes_.gather_rows(rows, weights, *taps_, begin, n, empty, dst, target_);
    return true;
  }

  // The source rows of an output row, weighted and added up.
  const E* added_rows(const Sources& sources, const Piece& piece, Scratch& scratch) const {
    const void* rows[kMaxRows];
    C weights[kMaxRows];
    int64_t waiting = 0, rest = sources.planes * sources.rows;
    const E* line = nullptr;
    for_each_row(sources, [&](const char* row, C weight) {
      rows[waiting] = row, weights[waiting++] = weight;
      if (--rest > 0 && waiting < kMaxRows)
        return;
      line = added(rows, weights, waiting, line == nullptr, piece, scratch);
      waiting = 0;
    });
    return line;
  }

  // Rows to apply taps to may be read beyond their end for as long as the widest window.
  static constexpr int64_t kSlack = 4 * kLanes<E>;

  C* line_of(int64_t n, Scratch& scratch) const {
    if (n + kSlack <= kShortLine)
      return scratch.short_line;
    scratch.long_line.resize(std::max<size_t>(scratch.long_line.size(), n + kSlack));
    return scratch.long_line.data();
  }

  // Whether a window that begins among n elements of a source row ends in the image.
  bool has_slack(const char* row, int64_t n) const {
    return row + (n + kSlack) * src_bytes_ <= src_end_;
  }

  // A source row that needs no conversion, or none before the taps are applied.
  template <class T = E>
  const T* elements_of(const char* row, const Piece& piece, Scratch& scratch) const {
    const int64_t n = (piece.high - piece.low) * channels_;
    if (has_slack(row, n))
      return reinterpret_cast<const T*>(row);
    return static_cast<const T*>(
        std::memcpy(static_cast<void*>(line_of(n, scratch)), row, n * src_bytes_));
  }

  const E* added(
      const void* const* rows,
      const C* weights,
      int64_t count,
      bool first,
      const Piece& piece,
      Scratch& scratch) const {
    if (src_is_elements_ && first && count == 1 && weights[0] == 1)
      return elements_of(static_cast<const char*>(rows[0]), piece, scratch);
    const int64_t n = (piece.high - piece.low) * channels_;
    C* line = line_of(n, scratch);
    passes_.add(rows, weights, count, first, n, line, Target::line);
    return reinterpret_cast<const E*>(line);
  }

  void apply_taps_to_row(const char* row, const Piece& piece, C* to, Scratch& scratch) const {
    if constexpr (std::is_same_v<E, float>) {
      if (from_bytes_) {
        const auto* bytes = elements_of<uint8_t>(row, piece, scratch) - piece.low * channels_;
        const int64_t begin = piece.begin * channels_;
        return gather_bytes(bytes, *taps_, begin, piece.size * channels_, empty_, to);
      }
    }
    const void* source[] = {row};
    const C weight[] = {1};
    apply_taps(added(source, weight, 1, true, piece, scratch), piece, to, false);
  }

  // W first: the source rows of output row h with the taps applied. Rows that are needed together
  // have slots of their own, where they stay for the next output rows.
  void find_rows(const Plane& plane, int64_t h, const void** rows, Scratch& scratch) const {
    const Piece& piece = pieces_[0];
    const int64_t length = (piece.size * channels_ + kLanes<E> - 1) / kLanes<E> * kLanes<E>;
    // Powers of two, so that finding a slot takes no division: kMaxRows at most.
    const int64_t slots_d = std::bit_ceil(static_cast<uint64_t>(d_.width));
    const int64_t slots_h = std::bit_ceil(static_cast<uint64_t>(h_.width));
    if (scratch.slots.empty())
      scratch.slots.resize(length * slots_d * slots_h);
    for (int64_t i = plane.start; i < plane.start + plane.count; i++) {
      for (int64_t j = h_.start[h]; j < h_.start[h] + h_.count[h]; j++) {
        const int64_t slot = (i & (slots_d - 1)) * slots_h + (j & (slots_h - 1));
        const char* row =
            plane.src + (i - plane.start) * src_step_d_ + j * src_step_h_ + piece.low * src_step_w_;
        C* to = scratch.slots.data() + slot * length;
        if (scratch.source[slot] != row) {
          apply_taps_to_row(row, piece, to, scratch);
          scratch.source[slot] = row;
        }
        *rows++ = to;
      }
    }
  }

  // f(the extrapolation value in the type of dst)
  template <class F>
  void with_extrapolation_value(const F& f) const {
    dispatch(ImageTypes{}, p_.dst_dtype, [&](auto tag) {
      f(convert<typename decltype(tag)::type>(static_cast<C>(p_.extrapolation_value)));
    });
  }

  void fill(char* dst, int64_t n) const {
    with_extrapolation_value(
        [&](auto value) { std::fill_n(reinterpret_cast<decltype(value)*>(dst), n, value); });
  }

  // What an empty row of the W table gives, before it is stored.
  E empty_value() const {
    E empty = 0;
    if constexpr (std::is_unsigned_v<E>) {
      with_extrapolation_value([&](auto value) {
        if constexpr (sizeof(value) == sizeof(E))
          std::memcpy(&empty, &value, sizeof(value));
      });
    } else {
      empty = static_cast<E>(p_.extrapolation_value);
    }
    return empty;
  }

  const ResampleProblem& p_;
  const HostTable<C>&d_, &h_, &w_;      // owned by the caller's tables
  std::shared_ptr<const Taps<C>> taps_; // null: pixels have many channels
  Passes passes_;
  int64_t channels_;              // of a pixel in a row: 1, or all
  int64_t src_bytes_, dst_bytes_; // of an element
  int64_t src_step_d_, src_step_h_, src_step_w_, dst_step_h_, dst_step_w_; // in bytes
  bool src_is_elements_;                                                   // nothing to convert
  bool w_first_, in_one_pass_;
  bool from_bytes_ = false; // w_first_, and the taps are applied to bytes
  Target target_;
  const char* src_end_;
  E empty_;
  c10::SmallVector<Piece, 2> pieces_;
};

template <class C>
bool only_moves(const ResampleProblem& p, const Tables<C>& tables) {
  return p.src_dtype == p.dst_dtype && tables[0]->copies && tables[1]->copies && tables[2]->copies;
}

// Elements are moved as integers of their size.
template <class E>
void run_moves(const ResampleProblem& p, const Tables<WeightOf<E>>& tables) {
  Rows<E>(
      p,
      tables,
      {nullptr, nullptr, nullptr, gather_taps<E, E>, nullptr, sum_pixels<E, E>, nullptr, nullptr})
      .run();
}

} // namespace

bool can_run_rows(const ResampleProblem& p) {
  return (is_planar(p) || is_interleaved(p)) &&
      p.src_size[2] <= std::numeric_limits<int32_t>::max() / p.c; // the taps' index
}

void run_rows(const ResampleProblem& p, bool transposed) {
  dispatch(ImageTypes{}, p.src_dtype, [&](auto src_tag) {
    using T = typename decltype(src_tag)::type;
    using C = compute_t<T>;
    const auto tables = cached_tables<C>(p.axes, transposed);
    if (only_moves(p, tables)) {
      if constexpr (sizeof(T) == 1) {
        return run_moves<uint8_t>(p, tables);
      } else if constexpr (sizeof(T) == 2) {
        return run_moves<uint16_t>(p, tables);
      } else if constexpr (sizeof(T) == 8) {
        return run_moves<uint64_t>(p, tables);
      } else {
        return run_moves<uint32_t>(p, cached_tables<float>(p.axes, transposed)); // of int32, too
      }
    }
    dispatch(ImageTypes{}, p.dst_dtype, [&](auto dst_tag) {
      using U = typename decltype(dst_tag)::type;
      typename Rows<C>::Passes::SumRows sum_rows = nullptr;
      typename Rows<C>::Passes::GatherRows gather_rows = nullptr;
      if constexpr (std::is_same_v<T, U>) {
        sum_rows = sum_pixels_of_rows<T, C, U>;
        gather_rows = gather_taps_of_rows<T, C, U>;
      }
      Rows<C>(
          p,
          tables,
          {add_rows<true, T, C, C>,
           add_rows<false, C, C, U>,
           gather_taps<C, C>,
           gather_taps<C, U>,
           sum_pixels<C, C>,
           sum_pixels<C, U>,
           sum_rows,
           gather_rows})
          .run();
    });
  });
}

} // namespace torch_dnnl
