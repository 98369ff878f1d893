// A quick way from Python to an operator: of a call through torch.ops, half of the time and more
// goes into arguments whose types are never in doubt.
//
// torch_dnnl._python.Operator("torch_dnnl::convolution") is a callable that takes what the operator
// takes, positions first, and converts plain values alone: tensors of exactly torch's types,
// numbers of exactly Python's, and lists of them. It returns NotImplemented, and has done nothing,
// where a value is anything else or where a mode or a tracer wants to see the call; then torch.ops
// decides. Operator(name, True) prepares calls (prepared_calls.h).
#include <Python.h>
#include <structmember.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/prepared_calls.h"

namespace torch_dnnl {
namespace {

using c10::IValue;
using c10::TypeKind;
using torch::jit::Stack;

std::optional<int64_t> to_int(PyObject* value) {
  if (!PyLong_CheckExact(value))
    return std::nullopt;
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow != 0 ? std::nullopt : std::optional(number);
}

std::optional<double> to_float(PyObject* value) {
  if (PyFloat_CheckExact(value))
    return PyFloat_AS_DOUBLE(value);
  const auto number = to_int(value);
  return number.has_value() ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

// A list of numbers; one number alone stands for `count` of them. `exactly`: neither more nor
// fewer.
template <class T, std::optional<T> (*to_number)(PyObject*)>
std::optional<IValue> to_list(PyObject* value, int64_t count, bool exactly) {
  c10::List<T> list;
  const auto add = [&](PyObject* entry, int64_t times) {
    const auto number = to_number(entry);
    for (int64_t i = 0; number.has_value() && i < times; i++)
      list.push_back(*number);
    return number.has_value();
  };
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    if (exactly && PySequence_Fast_GET_SIZE(value) != count)
      return std::nullopt;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
      if (!add(PySequence_Fast_GET_ITEM(value, i), 1))
        return std::nullopt;
  } else if (!add(value, count)) {
    return std::nullopt;
  }
  return IValue(std::move(list));
}

// An argument of an operator.
class Argument {
 public:
  explicit Argument(const c10::Argument& argument)
      : name_(PyUnicode_InternFromString(argument.name().c_str())),
        default_(argument.default_value()) {
    c10::TypePtr type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      is_optional_ = true;
      type = optional->getElementType();
    }
    kind_ = type->kind();
    if (const auto list = type->cast<c10::ListType>())
      is_list_of_floats_ = list->getElementType()->kind() == TypeKind::FloatType;
  }

  PyObject* name() const {
    return name_;
  }

  const std::optional<IValue>& default_value() const {
    return default_;
  }

  // The value, unless it is one for torch.ops. What is immutable is converted once as long as it is
  // the same object. `rank`: of the call's first tensor.
  std::optional<IValue> convert(PyObject* value, int64_t rank) {
    if (value == seen_ && rank == seen_rank_)
      return seen_value_;
    std::optional<IValue> result = converted(value, rank);
    const bool is_constant =
        PyUnicode_CheckExact(value) || PyTuple_CheckExact(value) || PyLong_CheckExact(value);
    if (result.has_value() && is_constant) {
      Py_INCREF(value);
      Py_XSETREF(seen_, value);
      seen_rank_ = rank;
      seen_value_ = *result;
    }
    return result;
  }

 private:
  std::optional<IValue> converted(PyObject* value, int64_t rank) const {
    const auto maybe = [](const auto& number) {
      return number.has_value() ? std::optional(IValue(*number)) : std::nullopt;
    };
    if (value == Py_None)
      return is_optional_ ? std::optional(IValue()) : std::nullopt;
    switch (kind_) {
      case TypeKind::TensorType:
        return THPVariable_CheckExact(value) ? std::optional(IValue(THPVariable_Unpack(value)))
                                             : std::nullopt;
      case TypeKind::ListType:
        // What another length means for an attribute with a default is up to the caller.
        return is_list_of_floats_ ? to_list<double, to_float>(value, rank - 2, false)
                                  : to_list<int64_t, to_int>(value, rank - 2, default_.has_value());
      case TypeKind::SymIntType:
        return maybe(to_int(value));
      case TypeKind::FloatType:
        return maybe(to_float(value));
      case TypeKind::BoolType:
        return PyBool_Check(value) ? std::optional(IValue(value == Py_True)) : std::nullopt;
      case TypeKind::ScalarTypeType:
        if (!THPDtype_Check(value))
          return std::nullopt;
        return IValue(static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type));
      case TypeKind::StringType: {
        Py_ssize_t size = 0;
        const char* text =
            PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
        if (text == nullptr) {
          PyErr_Clear();
          return std::nullopt;
        }
        return IValue(std::string(text, size));
      }
      default:
        return std::nullopt;
    }
  }

  PyObject* name_;
  std::optional<IValue> default_;
  TypeKind kind_;
  bool is_optional_ = false, is_list_of_floats_ = false;
  PyObject* seen_ = nullptr;
  int64_t seen_rank_ = 0;
  IValue seen_value_;
};

struct Operator {
  Operator(const char* name, bool prepares)
      : handle(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")) {
    for (const auto& argument : handle.schema().arguments())
      arguments.emplace_back(argument);
    if (prepares)
      prepared.emplace(handle);
  }

  c10::OperatorHandle handle;
  std::vector<Argument> arguments;
  std::optional<PreparedCalls> prepared;

  // The arguments of a call, unless it is one for torch.ops.
  std::optional<Stack> stack_of(PyObject* const* args, size_t count, PyObject* names) {
    const size_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    if (count == 0 || count + named > arguments.size() || !THPVariable_CheckExact(args[0]))
      return std::nullopt;
    const int64_t rank = THPVariable_Unpack(args[0]).dim();
    size_t used = 0;
    Stack stack;
    stack.reserve(arguments.size());
    for (size_t i = 0; i < arguments.size(); i++) {
      PyObject* value = i < count ? args[i] : nullptr;
      for (size_t j = 0; i >= count && j < named; j++) {
        if (PyTuple_GET_ITEM(names, j) == arguments[i].name()) { // both interned
          value = args[count + j];
          used++;
        }
      }
      auto converted =
          value == nullptr ? arguments[i].default_value() : arguments[i].convert(value, rank);
      if (!converted.has_value())
        return std::nullopt;
      stack.push_back(*std::move(converted));
    }
    return used == named ? std::optional(std::move(stack)) : std::nullopt;
  }
};

// The object in Python.
struct Callable {
  PyObject_HEAD vectorcallfunc call;
  Operator* op;
  Py_ssize_t prepared; // how many calls were not checked again
};

bool is_watched() {
  return at::impl::torch_function_mode_enabled() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() || torch::jit::tracer::isTracing();
}

PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  auto& callable = *reinterpret_cast<Callable*>(self);
  Operator& op = *callable.op;
  if (is_watched())
    Py_RETURN_NOTIMPLEMENTED;
  const size_t given = PyVectorcall_NARGS(count);
  const bool can_prepare = op.prepared.has_value() && names == nullptr &&
      given == op.arguments.size() && THPVariable_CheckExact(args[0]) &&
      THPVariable_CheckExact(args[1]) && is_plain_state();
  const PreparedCalls::Found found = can_prepare ? op.prepared->find(args) : PreparedCalls::Found();
  if (found.call != nullptr) {
    callable.prepared++;
    return THPVariable_Wrap(found.run());
  }
  std::optional<Stack> stack = op.stack_of(args, given, names);
  if (!stack.has_value())
    Py_RETURN_NOTIMPLEMENTED;
  const bool is_new = can_prepare && !found.is_known && op.prepared->can_add(args);
  const Stack values = is_new ? *stack : Stack();
  {
    const WithoutGil others;
    op.handle.callBoxed(*stack);
  }
  if (is_new)
    op.prepared->add(args, values);
  return THPVariable_Wrap(std::move(stack->front()).toTensor());
  END_HANDLE_TH_ERRORS
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* /*kwargs*/) {
  HANDLE_TH_ERRORS
  const char* name = nullptr;
  int prepares = 0;
  if (!PyArg_ParseTuple(args, "s|p", &name, &prepares))
    return nullptr;
  auto op = std::make_unique<Operator>(name, prepares);
  auto* self = reinterpret_cast<Callable*>(type->tp_alloc(type, 0));
  if (self != nullptr) {
    self->call = call;
    self->op = op.release(); // for good, as the operator itself
  }
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyTypeObject make_type() {
  static PyMemberDef members[] = {
      {"prepared", T_PYSSIZET, offsetof(Callable, prepared), READONLY, nullptr}, {nullptr}};
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_members = members;
  type.tp_name = "torch_dnnl._python.Operator";
  type.tp_basicsize = sizeof(Callable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_doc = "The first result of an operator for plain arguments, else NotImplemented.";
  type.tp_new = make;
  type.tp_vectorcall_offset = offsetof(Callable, call);
  type.tp_call = PyVectorcall_Call;
  return type;
}

} // namespace
} // namespace torch_dnnl

PyMODINIT_FUNC PyInit__python() {
  static PyTypeObject type = torch_dnnl::make_type();
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_python", nullptr, -1, nullptr};
  if (PyType_Ready(&type) < 0)
    return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr ||
      PyModule_AddObjectRef(module, "Operator", reinterpret_cast<PyObject*>(&type)) < 0)
    return nullptr;
  return module;
}
