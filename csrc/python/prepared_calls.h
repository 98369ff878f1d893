// A model calls an operator again and again with the same weights, attributes and sizes of images.
// The first such call is checked and dispatched. The other calls go to the kernel at once.
//
// Most of the instructions of a call are in no cache when a model runs the next layer: to fetch
// them takes 10 microseconds and more, where a loop over one layer shows 3.
#pragma once

#include <Python.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/prepared.h"

namespace torch_dnnl {

// Others may run while an operator does.
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() {
    PyEval_RestoreThread(state);
  }
};

// Whether a call goes to the kernel of the device without a transform, autocast or a profiler.
inline bool is_plain_state() {
  using namespace c10;
  const auto state = impl::tls_local_dispatch_key_set();
  const bool includes_more = !(state.included_ - default_included_set).empty();
  return !includes_more && state.excluded_.has_all(default_excluded_set) &&
      !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

namespace prepared_detail {

// Whether no gradient of a tensor is wanted.
inline bool is_constant(const at::Tensor& t) {
  return !(t.requires_grad() && c10::GradMode::is_enabled()) && !t._fw_grad(0).defined();
}

inline uint32_t version_of(const at::Tensor& t) {
  return t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version();
}

// Whether a tensor is an ordinary one of the CPU.
inline bool is_plain(const at::Tensor& t) {
  const auto keys = (t.key_set() - c10::default_excluded_set)
                        .remove(c10::DispatchKey::AutogradFunctionality)
                        .remove(c10::DispatchKey::ADInplaceOrView);
  return keys == c10::DispatchKeySet(c10::DispatchKey::CPU) && is_constant(t);
}

// An image: what a prepared call depends on.
struct Image {
  c10::DispatchKeySet keys;
  c10::ScalarType dtype;
  std::vector<int64_t> sizes, strides;

  explicit Image(const at::Tensor& t)
      : keys(t.key_set()),
        dtype(t.scalar_type()),
        sizes(t.sizes().vec()),
        strides(t.strides().vec()) {}
  bool is_like(const at::Tensor& t) const {
    return t.key_set() == keys && t.scalar_type() == dtype && t.sizes() == sizes &&
        t.strides() == strides && is_constant(t);
  }
};

// An argument that is the same in every call: a tensor, which may come to an end meanwhile, or
// another object.
struct Constant {
  PyObject* object = nullptr;
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  const void* data = nullptr;
  uint32_t version = 0; // changes with what is written to it

  bool is_same(PyObject* value) const {
    if (object != nullptr)
      return value == object;
    if (!THPVariable_CheckExact(value))
      return false;
    const at::Tensor& t = THPVariable_Unpack(value);
    return t.unsafeGetTensorImpl() == tensor._unsafe_get_target() && t.const_data_ptr() == data &&
        version_of(t) == version && is_constant(t);
  }
};

} // namespace prepared_detail

class PreparedCalls {
  struct Known {
    std::vector<prepared_detail::Constant> constants; // those of images are empty
    std::vector<prepared_detail::Image> images;       // src and, if the call has one, the residual
    std::shared_ptr<const PreparedCall> call; // null if the operator does more than a kernel
  };

 public:
  struct Found {
    bool is_known = false;
    std::shared_ptr<const PreparedCall> call = nullptr;
    const at::Tensor src = {}, residual = {};

    at::Tensor run() const {
      const WithoutGil others;
      return call->run(src, residual);
    }
  };

  explicit PreparedCalls(const c10::OperatorHandle& op) {
    const auto& arguments = op.schema().arguments();
    while (arguments[residual_].name() != "residual")
      residual_++;
    const std::string name = op.schema().name();
    prepare_ = c10::Dispatcher::singleton().findSchema(
        {"torch_dnnl_prepare" + name.substr(name.find("::")), ""});
    count_ = arguments.size();
  }

  // `args`, here and below: all arguments of the operator by position. The first two are tensors.
  Found find(PyObject* const* args) const {
    const auto known = calls_.find(THPVariable_Unpack(args[1]).unsafeGetTensorImpl());
    if (known == calls_.end())
      return {};
    for (const Known& each : known->second)
      if (fits(each, args))
        return {true, each.call, THPVariable_Unpack(args[0]), residual_of(args)};
    return {};
  }

  // Whether add() takes a call.
  bool can_add(PyObject* const* args) const {
    for (size_t i = 0; i < count_; i++)
      if (THPVariable_CheckExact(args[i]) &&
          !prepared_detail::is_plain(THPVariable_Unpack(args[i])))
        return false;
    return prepare_.has_value();
  }

  // The operator has computed the call. `values` are the arguments as the operator took them.
  void add(PyObject* const* args, const std::vector<c10::IValue>& values) {
    Known known;
    for (size_t i = 0; i < count_; i++) {
      prepared_detail::Constant constant;
      if (THPVariable_CheckExact(args[i])) {
        const at::Tensor& t = THPVariable_Unpack(args[i]);
        if (is_image(i)) {
          known.images.emplace_back(t);
        } else {
          constant.tensor = t.getIntrusivePtr();
          constant.data = t.const_data_ptr();
          constant.version = prepared_detail::version_of(t);
        }
      } else if (!values[i].isTensor()) {
        constant.object = args[i];
      }
      known.constants.push_back(std::move(constant));
    }
    std::vector<c10::IValue> stack = values;
    try {
      prepare_->callBoxed(stack);
      known.call.reset(reinterpret_cast<const PreparedCall*>(stack.front().toInt()));
    } catch (const c10::Error&) {
      // The call goes to the operator the next time, too.
    }
    for (const auto& constant : known.constants)
      Py_XINCREF(constant.object);
    if (calls_.size() >= most_) {
      forget_ended();
      most_ = 2 * std::max<size_t>(calls_.size(), kFew);
    }
    auto& of_weights = calls_[THPVariable_Unpack(args[1]).unsafeGetTensorImpl()];
    if (of_weights.size() == kSizes) {
      release(of_weights.front());
      of_weights.erase(of_weights.begin());
    }
    of_weights.push_back(std::move(known));
  }

 private:
  static constexpr size_t kSizes = 4; // of images, and attributes, for which weights are prepared
  static constexpr size_t kFew = 256;

  bool is_image(size_t argument) const {
    return argument == 0 || argument == residual_;
  }
  at::Tensor residual_of(PyObject* const* args) const {
    return args[residual_] == Py_None ? at::Tensor() : THPVariable_Unpack(args[residual_]);
  }

  bool fits(const Known& known, PyObject* const* args) const {
    size_t images = 0;
    for (size_t i = 0; i < count_; i++) {
      const bool is_tensor = is_image(i) && THPVariable_CheckExact(args[i]);
      if (is_tensor) {
        if (images == known.images.size() ||
            !known.images[images++].is_like(THPVariable_Unpack(args[i])))
          return false;
      } else if (!known.constants[i].is_same(args[i])) {
        return false;
      }
    }
    return images == known.images.size();
  }

  static void release(const Known& known) {
    for (const auto& constant : known.constants)
      Py_XDECREF(constant.object);
  }

  // Forgets calls whose weights no longer exist.
  void forget_ended() {
    std::erase_if(calls_, [](const auto& item) {
      const auto& [weights, calls] = item;
      if (!calls.front().constants[1].tensor.expired())
        return false;
      for (const Known& known : calls)
        release(known);
      return true;
    });
  }

  std::unordered_map<const c10::TensorImpl*, std::vector<Known>> calls_; // by weights
  std::optional<c10::OperatorHandle> prepare_;
  size_t residual_ = 0, count_ = 0, most_ = kFew;
};

} // namespace torch_dnnl
