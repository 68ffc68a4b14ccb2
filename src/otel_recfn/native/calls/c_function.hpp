// A C function that is called, as CPython tells of it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

struct CFunction {
  const PyMethodDef* definition = nullptr;  // null: it is none that is told of
  PyObject* bound_to = nullptr;             // null: to nothing, or to a module

  static CFunction of_builtin(PyObject* callable) {
    const auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
    return {function->m_ml, function->m_self};
  }

  // `first`: the first argument, null where there is none.
  static CFunction of_method(PyObject* callable, PyObject* first) {
    if (first == nullptr) return {};
    return {reinterpret_cast<PyMethodDescrObject*>(callable)->d_method, first};
  }

  static CFunction of(PyObject* callable, PyObject* first) {
    if (PyCFunction_Check(callable)) return of_builtin(callable);
    return Py_TYPE(callable) == &PyMethodDescr_Type ? of_method(callable, first) : CFunction{};
  }
};

}  // namespace recfn
