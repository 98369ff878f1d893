// The arithmetic of a reorder over the rows of a box: load, compute, round, store. All of it is
// vectorised along the rows, a step at a time, in pieces that stay in the first-level cache.
#pragma once

#include "reorder/cpu/box.h"

namespace torch_dnnl::reorder_cpu {

class Rows {
 public:
  virtual ~Rows() = default;

  // Of a merged box, whose innermost axis are the rows. `src` and `dst` are where it begins; where
  // it begins in the other arrays, its offsets say.
  virtual void run(const Box& box, const char* src, char* dst) const = 0;
};

// Moves elements of 1, 2, 4 or 8 bytes.
class MoveRows final : public Rows {
 public:
  explicit MoveRows(int64_t element_size) : element_size_(element_size) {}
  void run(const Box& box, const char* src, char* dst) const override;

 private:
  int64_t element_size_;
};

// Whether elements are only moved.
bool is_move(const ReorderProblem& p);

// C: what is computed in; float, double, or int32_t from integer to integer.
template <class C>
class ConvertRows final : public Rows {
 public:
  explicit ConvertRows(const ReorderProblem& p);
  void run(const Box& box, const char* src, char* dst) const override;

 private:
  // The two innermost loops.
  struct Plane {
    int64_t run, rows, step, row_step;
  };
  struct Input {
    bool present;
    const char* data; // null: `number`
    int64_t size;     // of an element
    bool is_computed; // the type is C
    C number;
    void (*widen)(const char* from, const Plane& plane, C* to);
  };
  struct Piece;

  const C* load(Array array, const Piece& piece, C* buffer) const;
  template <class F>
  const C* step(Array array, const Piece& piece, const C* value, C* result, const F& f) const;
  void run_piece(const Piece& piece, char* dst) const;

  template <class T>
  static void widen_plane(const char* from, const Plane& plane, C* to);
  template <class T>
  static void narrow_plane(const C* from, const Plane& plane, char* to);
  static Plane plane_of(Array array, const Piece& piece);

  void set(Array array, const void* data, c10::ScalarType dtype);
  void set(Array array, const ReorderProblem::Operand& operand);

  Input inputs_[kArrays];
  int64_t dst_size_;
  void (*narrow_)(const C* from, const Plane& plane, char* to);
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
