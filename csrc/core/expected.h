// Messages of errors. All of them read `<operator>: expected <argument> to ..., got ...`.
#pragma once

#include <c10/util/Exception.h>

#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

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

// The names of what a message lists: `"a", "b"`. name(item) is empty where it is left out.
template <class List, class Name>
std::string listed(const List& list, const Name& name, const char* quote = "\"") {
  std::string names;
  for (const auto& item : list)
    if (const std::string_view text = name(item); !text.empty())
      names.append(names.empty() ? "" : ", ").append(quote).append(text).append(quote);
  return names;
}

} // namespace torch_dnnl
