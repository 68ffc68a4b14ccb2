// Values of PyTorch's as Python objects.
//
// PyTorch makes most of them itself. A value that it has no Python object for (a storage, for instance), or that this PyTorch can't
// show, shows as its kind, so that the others can still be read.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <sstream>
#include <string>

#if __has_include(<torch/csrc/autograd/python_variable.h>)
#include <torch/csrc/autograd/python_variable.h>
#endif
#if __has_include(<torch/csrc/jit/python/pybind_utils.h>)
#include <torch/csrc/jit/python/pybind_utils.h>
#endif
#if __has_include(<ATen/core/function_schema.h>)
#include <ATen/core/function_schema.h>
#endif
#if __has_include(<pybind11/pybind11.h>)
#include <pybind11/pybind11.h>
#endif

#include "cpython/python.hpp"
#include "pytorch/features.hpp"

namespace recfn {

inline PyObject* to_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// Looks for the Python object that a tensor has already, as torch 2.13 and as earlier ones spell it.
inline constexpr auto python_object = [](const auto& tensor)
    -> decltype(tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj()) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
};
inline constexpr auto earlier_python_object = [](const auto& tensor)
    -> decltype(tensor.unsafeGetTensorImpl()->pyobj_slot()->_unchecked_untagged_pyobj()) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->_unchecked_untagged_pyobj();
};

constexpr bool kHasTensors = compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isTensor(), at::Tensor(value.toTensor().variable_data()), ::THPVariable_Wrap(value.toTensor()), void()) {});
constexpr bool kHasOwnTensors =
    kCallable<decltype(python_object), const at::Tensor&> || kCallable<decltype(earlier_python_object), const at::Tensor&>;
constexpr bool kHasLists = compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isList(), value.toListRef().size(), value.isTuple(), value.toTupleRef().elements().vec().size(), void()) {});
constexpr bool kHasValues =
    compiles<const c10::IValue&>([](const auto& value) -> decltype(torch::jit::toPyObject(value).release().ptr(), void()) {});

template <typename Tensor>
bool is_known_to_python(const Tensor& tensor) {
  if constexpr (kCallable<decltype(python_object), const Tensor&>) {
    return python_object(tensor) != nullptr;
  } else if constexpr (kCallable<decltype(earlier_python_object), const Tensor&>) {
    return earlier_python_object(tensor) != nullptr;
  } else {
    return false;
  }
}

// A tensor that has no Python object yet must not get one here: PyTorch refuses to make a Parameter, or another subclass, of a
// tensor that has one. So another tensor that shares its data is given.
template <typename Tensor>
PyObject* to_tensor(const Tensor& tensor) {
  if (!tensor.defined()) return Py_NewRef(Py_None);
  return ::THPVariable_Wrap(is_known_to_python(tensor) ? tensor : at::Tensor(tensor.variable_data()));
}

template <typename Value>
PyObject* to_kind(const Value& value) {
  return to_text("<" + value.tagKind() + ">");
}

template <typename Values>
PyObject* to_list(const Values& values);

template <typename Values>
PyObject* to_tuple(const Values& values) {
  const Reference list(to_list(values));
  return list ? PyList_AsTuple(list.get()) : nullptr;
}

template <typename Value>
PyObject* to_python(const Value& value) {
  try {
    if constexpr (kHasTensors) {
      if (value.isTensor()) return to_tensor(value.toTensor());
    }
    if constexpr (kHasLists) {
      if (value.isList()) return to_list(value.toListRef());
      if (value.isTuple()) return to_tuple(value.toTupleRef().elements().vec());
    }
    if constexpr (kHasValues) return torch::jit::toPyObject(value).release().ptr();
  } catch (const c10::Error&) {  // PyTorch has no Python object for it
  }
  return to_kind(value);
}

template <typename Values>
PyObject* to_list(const Values& values) {
  Reference list(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t position = 0; list && position < values.size(); ++position) {
    PyObject* value = to_python(values[position]);
    if (value == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(position), value);
  }
  return list.release();
}

template <typename Values>
PyObject* to_dict(const Values& values) {
  Reference dict(PyDict_New());
  for (const auto& [name, value] : values) {
    const Reference key(to_text(name)), object(to_python(value));
    if (!dict || !key || !object || PyDict_SetItem(dict.get(), key.get(), object.get()) < 0) return nullptr;
  }
  return dict.release();
}

// TorchRecordFunction: what a callback in Python sees of a RecordFunction of PyTorch's, by the names that ours has.
//
// It points at PyTorch's object only while a callback runs; nothing is read before it is asked for.

struct TorchFunction {
  PyObject_HEAD
  const at::RecordFunction* function;  // null while no callback runs
  bool starting;
};

// What the Python side gives when it attaches: our classes for what PyTorch has classes of its own for, and two errors.
struct RuntimeTypes {
  PyObject* scopes = nullptr;         // the tuple of RecordScope's ten
  PyObject* operator_name = nullptr;  // (name, overload name) -> OperatorName
  PyObject* schema = nullptr;         // (text) -> FunctionSchema
  PyObject* inputs_error = nullptr;   // inputs asked for outside the start callback
  PyObject* over_error = nullptr;     // anything asked for outside callbacks
};

inline RuntimeTypes& runtime_types() {
  static RuntimeTypes types;
  return types;
}

template <typename Read>
PyObject* read_function(PyObject* self, Read read) {
  const at::RecordFunction* function = reinterpret_cast<TorchFunction*>(self)->function;
  if (function == nullptr) {
    PyErr_SetString(runtime_types().over_error,
                    "a RecordFunction of PyTorch's was read after the callback that got it returned; keep what you need in the "
                    "observer context instead");
    return nullptr;
  }
  try {
    return read(*function);
#if __has_include(<pybind11/pybind11.h>)
  } catch (pybind11::error_already_set& error) {
    error.restore();
#endif
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

inline bool may_read_inputs(PyObject* self, const char* method) {
  const auto* announced = reinterpret_cast<TorchFunction*>(self);
  if (announced->function != nullptr && announced->starting) return true;
  PyErr_Format(runtime_types().inputs_error,
               "%s() was called outside the start callback; keep what you need in the observer context instead", method);
  return false;
}

// `show` makes a Python object of what `Read` reads; `none` makes the one to give where this PyTorch doesn't tell it.
template <const auto& Read, typename Show, typename None>
PyObject* read_detail(PyObject* self, Show show, None none) {
  return read_function(self, [&](const auto& range) -> PyObject* {
    if constexpr (kCallable<decltype(Read), decltype(range)>) {
      return show(Read(range));
    } else {
      return none();
    }
  });
}

inline constexpr auto as_list = [](const auto& values) { return to_list(values); };
inline constexpr auto as_dict = [](const auto& values) { return to_dict(values); };
inline constexpr auto no_list = [] { return PyList_New(0); };
inline constexpr auto no_dict = [] { return PyDict_New(); };
inline constexpr auto none = [] { return Py_NewRef(Py_None); };

inline PyObject* read_inputs(PyObject* self, PyObject*) {
  return may_read_inputs(self, "inputs") ? read_detail<details::inputs>(self, as_list, no_list) : nullptr;
}

inline PyObject* read_kwinputs(PyObject* self, PyObject*) {
  return may_read_inputs(self, "kwinputs") ? read_detail<details::kwinputs>(self, as_dict, no_dict) : nullptr;
}

inline PyObject* read_outputs(PyObject* self, PyObject*) { return read_detail<details::outputs>(self, as_list, no_list); }

inline PyObject* read_name(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) { return to_text(fn.name()); });
}

inline PyObject* scope_member(at::RecordScope scope) {
  return Py_XNewRef(PyTuple_GetItem(runtime_types().scopes, static_cast<Py_ssize_t>(scope)));
}

inline PyObject* read_scope(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) { return scope_member(fn.scope()); });
}

constexpr bool kHasOperatorNames = compiles<const at::RecordFunction&>([](const auto& range) -> decltype(
    details::operator_name(range)->name.c_str(), details::operator_name(range)->overload_name.c_str(), void()) {});

inline PyObject* read_operator_name(PyObject* self, PyObject*) {
  constexpr auto show = [](const auto& name) {
    if constexpr (kHasOperatorNames) {
      if (name) return PyObject_CallFunction(runtime_types().operator_name, "ss", name->name.c_str(), name->overload_name.c_str());
    }
    return none();
  };
  return read_detail<details::operator_name>(self, show, none);
}

constexpr bool kHasSchemas = compiles<const at::RecordFunction&>(
    [](const auto& range) -> decltype(std::declval<std::ostream&>() << *details::operator_schema(range), void()) {});

inline PyObject* read_operator_schema(PyObject* self, PyObject*) {
  constexpr auto show = [](const auto& schema) {
    if constexpr (kHasSchemas) {
      std::ostringstream text;
      if (schema) text << *schema;
      if (schema) return PyObject_CallFunction(runtime_types().schema, "s", text.str().c_str());
    }
    return none();
  };
  return read_detail<details::operator_schema>(self, show, none);
}

inline PyObject* to_number(bool number) { return PyBool_FromLong(number); }
inline PyObject* to_number(int64_t number) { return PyLong_FromLongLong(number); }
inline PyObject* to_number(uint64_t number) { return PyLong_FromUnsignedLongLong(number); }

// `Otherwise`: what to give where this PyTorch doesn't tell it.
template <const auto& Read, auto Otherwise>
PyObject* read_number(PyObject* self, PyObject*) {
  constexpr auto show = [](decltype(Otherwise) number) { return to_number(number); };
  return read_detail<Read>(self, show, [] { return to_number(Otherwise); });
}

inline PyMethodDef function_methods[] = {
    {"name", read_name, METH_NOARGS, "The range's name."},
    {"scope", read_scope, METH_NOARGS, "Its RecordScope."},
    {"seq_nr", read_number<details::sequence_nr, int64_t{-1}>, METH_NOARGS, "Links forward and backward; -1 where there is none."},
    {"thread_id", read_number<details::thread_id, uint64_t{0}>, METH_NOARGS, "Logical id of the thread that began it."},
    {"forward_thread_id", read_number<details::forward_thread_id, uint64_t{0}>, METH_NOARGS, "Of backward functions; else 0."},
    {"handle", read_number<details::handle, uint64_t{0}>, METH_NOARGS, "Unique where a callback needs ids."},
    {"debug_handle", read_number<details::debug_handle, int64_t{-1}>, METH_NOARGS, "-1 where there is none."},
    {"inputs", read_inputs, METH_NOARGS, "The values, in the start callback; empty unless a callback needs inputs."},
    {"kwinputs", read_kwinputs, METH_NOARGS, "The keyword values, in the start callback."},
    {"outputs", read_outputs, METH_NOARGS, "The values, in the end callback; empty unless a callback needs outputs."},
    {"num_inputs", read_number<details::num_inputs, uint64_t{0}>, METH_NOARGS, "How many inputs it has."},
    {"num_outputs", read_number<details::num_outputs, uint64_t{0}>, METH_NOARGS, "How many outputs it has."},
    {"operator_name", read_operator_name, METH_NOARGS, "Of an operator, else None."},
    {"operator_schema", read_operator_schema, METH_NOARGS, "Of an operator, else None."},
    {"needs_inputs", read_number<details::needs_inputs, false>, METH_NOARGS, "Whether a callback needs inputs."},
    {"needs_outputs", read_number<details::needs_outputs, false>, METH_NOARGS, "Whether a callback needs outputs."},
    {"is_active", read_number<details::is_active, true>, METH_NOARGS, "Whether it runs callbacks."},
    {"is_async", read_number<details::is_async, false>, METH_NOARGS, "Whether it may end in another thread."},
    {"is_nccl_meta", read_number<details::is_nccl_meta, false>, METH_NOARGS, "Whether it collects NCCL metadata."},
    {"is_static_runtime_out_variant", read_number<details::is_out_variant, false>, METH_NOARGS,
     "Whether Static Runtime runs an out variant."},
    {}};

inline PyTypeObject* function_type() {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  if (type.tp_name == nullptr) {
    type.tp_name = "otel_recfn.TorchRecordFunction";
    type.tp_doc = "A RecordFunction of PyTorch's, readable while the callback that got it runs.";
    type.tp_basicsize = sizeof(TorchFunction);
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_methods = function_methods;
    if (PyType_Ready(&type) < 0) return nullptr;
  }
  return &type;
}

inline Reference new_function() {
  auto* made = PyObject_New(TorchFunction, function_type());
  if (made != nullptr) made->function = nullptr;
  return Reference(reinterpret_cast<PyObject*>(made));
}

// The object shows `function` for as long as this lives.
class Shown {
 public:
  Shown(const Reference& object, const at::RecordFunction& function, bool starting)
      : shown_(reinterpret_cast<TorchFunction*>(object.get())) {
    shown_->function = &function;
    shown_->starting = starting;
  }
  ~Shown() { shown_->function = nullptr; }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  TorchFunction* shown_;
};

}  // namespace recfn
