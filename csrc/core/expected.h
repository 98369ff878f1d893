// Messages of errors. All of them read `<operator>: expected <argument> to ..., got ...`.
#pragma once

#include <c10/util/Exception.h>

#include <ostream>
#include <sstream>

namespace torch_dnnl {

// The beginning of a message: TORCH_CHECK_VALUE(condition, Expected(op) << argument << " to ...").
class Expected {
 public:
  explicit Expected(const char* op) {
    message_ << op << ": expected ";
  }
  template <class T>
  Expected& operator<<(const T& value) {
    message_ << value;
    return *this;
  }
  friend std::ostream& operator<<(std::ostream& out, const Expected& e) {
    return out << e.message_.view();
  }

 private:
  std::ostringstream message_;
};

} // namespace torch_dnnl
