// Values of PyTorch's as Python objects.
//
// PyTorch makes most of them itself. A value that it has no Python object for (a storage, for
// instance), or that this PyTorch can't show, shows as its kind, so that the others can still be
// read.
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <sstream>

#include "cpython/python.hpp"
#include "pytorch/features.hpp"

namespace recfn {

// Looks for the Python object that a tensor has already, as torch 2.13 and as earlier ones spell
// it.
inline constexpr auto python_object =
    [](const auto& tensor) -> decltype(tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj()) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
};
inline constexpr auto earlier_python_object = [](const auto& tensor)
    -> decltype(tensor.unsafeGetTensorImpl()->pyobj_slot()->_unchecked_untagged_pyobj()) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->_unchecked_untagged_pyobj();
};

constexpr bool kHasOwnTensors = kCallable<decltype(python_object), const at::Tensor&> ||
                                kCallable<decltype(earlier_python_object), const at::Tensor&>;
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

// A tensor that has no Python object yet must not get one here: PyTorch refuses to make a
// Parameter, or another subclass, of a tensor that has one. So another tensor that shares its data
// is given.
inline PyObject* to_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return Py_NewRef(Py_None);
  if (is_known_to_python(tensor)) return ::THPVariable_Wrap(tensor);
  return ::THPVariable_Wrap(at::Tensor(tensor.variable_data()));
}

template <typename Values>
PyObject* to_list(const Values& values);

template <typename Values>
PyObject* to_tuple(const Values& values) {
  const Reference list(to_list(values));
  return list ? PyList_AsTuple(list.get()) : nullptr;
}

inline PyObject* to_python(const c10::IValue& value) {
  try {
    if (value.isTensor()) return to_tensor(value.toTensor());
    if (value.isList()) return to_list(value.toListRef());
    if (value.isTuple()) return to_tuple(value.toTupleRef().elements().vec());
    return torch::jit::toPyObject(value).release().ptr();
  } catch (const c10::Error&) {  // PyTorch has no Python object for it
    return to_text("<" + value.tagKind() + ">");
  }
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
    const Reference key(to_text(name));
    const Reference object(to_python(value));
    if (!dict || !key || !object || PyDict_SetItem(dict.get(), key.get(), object.get()) < 0) {
      return nullptr;
    }
  }
  return dict.release();
}

// TorchRecordFunction: what a callback in Python sees of a RecordFunction of PyTorch's, by the
// names that ours has.
//
// It points at PyTorch's object only while a callback runs; nothing is read before it is asked for.

struct TorchFunction {
  PyObject_HEAD
  const at::RecordFunction* function;  // null while no callback runs
  bool starting;
};

// What the Python side gives when it attaches: our classes for what PyTorch has classes of its own
// for, and two errors.
struct RuntimeTypes {
  PyObject* scopes = nullptr;         // the tuple of RecordScope's ten
  PyObject* operator_name = nullptr;  // (name, overload name) -> OperatorName
  PyObject* schema = nullptr;         // (text) -> FunctionSchema
  PyObject* inputs_error = nullptr;   // inputs asked for outside the start callback
  PyObject* over_error = nullptr;     // anything asked for outside callbacks
  PyObject* thread_id = nullptr;      // (PyTorch's id of a thread) -> ours
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
                    "a RecordFunction of PyTorch's was read after the callback that got it "
                    "returned; keep what you need in the observer context instead");
    return nullptr;
  }
  try {
    return read(*function);
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

inline bool may_read_inputs(PyObject* self, const char* method) {
  const auto* torch_function = reinterpret_cast<TorchFunction*>(self);
  if (torch_function->function != nullptr && torch_function->starting) return true;
  PyErr_Format(runtime_types().inputs_error,
               "%s() was called outside the start callback; keep what you need in the observer "
               "context instead",
               method);
  return false;
}

inline PyObject* read_inputs(PyObject* self, PyObject*) {
  if (!may_read_inputs(self, "inputs")) return nullptr;
  return read_function(self, [](const at::RecordFunction& fn) { return to_list(fn.inputs()); });
}

inline PyObject* read_kwinputs(PyObject* self, PyObject*) {
  if (!may_read_inputs(self, "kwinputs")) return nullptr;
  return read_function(self, [](const at::RecordFunction& fn) { return to_dict(fn.kwinputs()); });
}

inline PyObject* read_outputs(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) { return to_list(fn.outputs()); });
}

inline PyObject* read_name(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) { return to_text(fn.name()); });
}

inline PyObject* scope_member(at::RecordScope scope) {
  return Py_XNewRef(PyTuple_GetItem(runtime_types().scopes, static_cast<Py_ssize_t>(scope)));
}

inline PyObject* read_scope(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) { return scope_member(fn.scope()); });
}

inline PyObject* read_operator_name(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) {
    const auto name = fn.operator_name();
    if (!name) return Py_NewRef(Py_None);
    return PyObject_CallFunction(runtime_types().operator_name, "ss", name->name.c_str(),
                                 name->overload_name.c_str());
  });
}

inline PyObject* read_operator_schema(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) {
    const auto schema = fn.operator_schema();
    if (!schema) return Py_NewRef(Py_None);
    std::ostringstream text;
    text << *schema;
    return PyObject_CallFunction(runtime_types().schema, "s", text.str().c_str());
  });
}

template <auto Read>
PyObject* read_number(PyObject* self, PyObject*) {
  return read_function(self, [](const at::RecordFunction& fn) {
    const auto number = std::invoke(Read, fn);
    if constexpr (std::is_same_v<decltype(number), const bool>) return PyBool_FromLong(number);
    return std::is_signed_v<decltype(number)> ? PyLong_FromLongLong(number)
                                              : PyLong_FromUnsignedLongLong(number);
  });
}

template <auto Read>
PyObject* read_thread_id(PyObject* self, PyObject* none) {
  const Reference torchs(read_number<Read>(self, none));
  return torchs ? PyObject_CallOneArg(runtime_types().thread_id, torchs.get()) : nullptr;
}

// PyTorch marks few ranges of which it is known at the begin.
inline bool is_async(const at::RecordFunction& fn) {
  return fn.isAsync() || fn.threadId() != at::RecordFunction::currentThreadId();
}

inline PyMethodDef function_methods[] = {
    {"name", read_name, METH_NOARGS, "The range's name."},
    {"scope", read_scope, METH_NOARGS, "Its RecordScope."},
    {"seq_nr", read_number<&at::RecordFunction::seqNr>, METH_NOARGS,
     "Links forward and backward; -1 where there is none."},
    {"thread_id", read_thread_id<&at::RecordFunction::threadId>, METH_NOARGS,
     "Logical id of the thread that began it."},
    {"forward_thread_id", read_thread_id<&at::RecordFunction::forwardThreadId>, METH_NOARGS,
     "Of backward functions; else 0."},
    {"handle", read_number<&at::RecordFunction::handle>, METH_NOARGS,
     "Unique where a callback needs ids."},
    {"debug_handle", read_number<&at::RecordFunction::debugHandle>, METH_NOARGS,
     "-1 where there is none."},
    {"inputs", read_inputs, METH_NOARGS,
     "The values, in the start callback; elsewhere an InputsError. Empty unless a callback needs "
     "inputs."},
    {"kwinputs", read_kwinputs, METH_NOARGS,
     "The keyword values, in the start callback; elsewhere an InputsError."},
    {"outputs", read_outputs, METH_NOARGS,
     "The values, in the end callback; empty unless a callback needs outputs."},
    {"num_inputs", read_number<&at::RecordFunction::num_inputs>, METH_NOARGS,
     "How many inputs it has."},
    {"num_outputs", read_number<&at::RecordFunction::num_outputs>, METH_NOARGS,
     "How many outputs it has."},
    {"operator_name", read_operator_name, METH_NOARGS, "Of an operator, else None."},
    {"operator_schema", read_operator_schema, METH_NOARGS, "Of an operator, else None."},
    {"needs_inputs", read_number<&at::RecordFunction::needsInputs>, METH_NOARGS,
     "Whether a callback needs inputs."},
    {"needs_outputs", read_number<&at::RecordFunction::needsOutputs>, METH_NOARGS,
     "Whether a callback needs outputs."},
    {"is_active", read_number<&at::RecordFunction::isActive>, METH_NOARGS,
     "Whether it runs callbacks."},
    {"is_async", read_number<is_async>, METH_NOARGS,
     "Whether it ends in another thread, or with a future; certain in end callbacks."},
    {"is_nccl_meta", read_number<&at::RecordFunction::isNcclMeta>, METH_NOARGS,
     "Whether it collects NCCL metadata."},
    {"is_static_runtime_out_variant", read_number<is_out_variant>, METH_NOARGS,
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
class Exposure {
 public:
  Exposure(const Reference& object, const at::RecordFunction& function, bool starting)
      : function_object_(reinterpret_cast<TorchFunction*>(object.get())) {
    function_object_->function = &function;
    function_object_->starting = starting;
  }
  ~Exposure() { function_object_->function = nullptr; }
  Exposure(const Exposure&) = delete;
  Exposure& operator=(const Exposure&) = delete;

 private:
  TorchFunction* function_object_;
};

}  // namespace recfn
