// Values of PyTorch's as Python objects.
//
// PyTorch makes most of them itself. A value that it has no Python object for (a storage, for instance), or that this PyTorch can't
// show, shows as its kind, so that the others can still be read.
#pragma once
#include "cpython/python.hpp"

// Python.h comes first.
#include <ATen/core/ivalue.h>

#if __has_include(<torch/csrc/autograd/python_variable.h>)
#include <torch/csrc/autograd/python_variable.h>
#endif
#if __has_include(<torch/csrc/jit/python/pybind_utils.h>)
#include <torch/csrc/jit/python/pybind_utils.h>
#endif

#include <string>

#include "callbacks/python_entry.hpp"
#include "pytorch/features.hpp"

namespace recfn::stand_ins {

namespace global_names {
template <typename... Any>
PyObject* THPVariable_Wrap(Any...) = delete;
}  // namespace global_names

namespace jit_names {
template <typename... Any>
void toPyObject(Any...) = delete;
}  // namespace jit_names

}  // namespace recfn::stand_ins

using namespace recfn::stand_ins::global_names;

namespace torch::jit {
using namespace recfn::stand_ins::jit_names;
}

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

}  // namespace recfn
