// A reorder of the rows of a box, in the order of the box: elements are moved, or loaded, computed
// with, rounded and stored.
#pragma once

#include "reorder/box.h"
#include "reorder/cpu/quantize_rows.h"

namespace torch_dnnl::reorder_cpu {

using namespace boxes;

class Rows {
 public:
  virtual ~Rows() = default;

  // Of a merged box, whose innermost axis are the rows. `src` and `dst` are where it begins; where
  // it begins in the other arrays, its offsets say.
  virtual void run(const Box& box, const char* src, char* dst, bool is_streamed) const = 0;
};

// Moves elements of 1, 2, 4 or 8 bytes.
class MoveRows final : public Rows {
 public:
  explicit MoveRows(int64_t element_size) : element_size_(element_size) {}
  void run(const Box& box, const char* src, char* dst, bool is_streamed) const override;

 private:
  int64_t element_size_;
};

// Whether elements are only moved.
bool is_move(const ReorderProblem& p);

// Runs the arithmetic, see quantize_rows.h.
template <class C>
class ConvertRows final : public Rows {
 public:
  explicit ConvertRows(const ReorderProblem& p);
  void run(const Box& box, const char* src, char* dst, bool is_streamed) const override;

 private:
  // An array over a part of the two innermost loops.
  struct Plane {
    int64_t run, rows, step, row_step;
  };
  struct Input {
    bool present;
    const char* data; // null: `number`
    C number;
    c10::ScalarType dtype;
    int64_t size; // of an element
    void (*widen)(const char* from, const Plane& plane, C* to);
  };
  struct Piece;

  template <class T>
  static void widen_plane(const char* from, const Plane& plane, C* to);

  void set(Array array, const void* data, c10::ScalarType dtype);
  void set(Array array, const ReorderProblem::Operand& operand);
  const char* begin(Array array, const Piece& piece) const;
  typename RowArgs<C>::Operand operand(Array array, const Piece& piece, C* buffer) const;
  bool is_in_place(Array array, const Axis& inner) const;
  void choose_piece(const Axis& inner, const Axis& next, Piece& piece) const;
  void run_piece(const Piece& piece, char* dst, bool is_streamed) const;

  Input inputs_[kArrays];
  c10::ScalarType dst_dtype_;
  C beta_;
  bool round_before_zero_point_;
};

// f(rows) with the rows of a problem.
template <class F>
void with_rows(const ReorderProblem& p, const F& f) {
  if (is_move(p)) {
    f(MoveRows(c10::elementSize(p.dst_dtype)));
  } else if (p.compute_dtype == c10::kLong) {
    f(ConvertRows<int32_t>(p));
  } else if (p.compute_dtype == c10::kDouble) {
    f(ConvertRows<double>(p));
  } else {
    f(ConvertRows<float>(p));
  }
}

} // namespace torch_dnnl::reorder_cpu
