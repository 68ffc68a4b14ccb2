// A C function that is called, as CPython tells of it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

struct CFunction {
  const PyMethodDef* definition = nullptr;  // null: it is none that is told of
  PyObject* bound_to = nullptr;             // null: to nothing, or to a module

  // `first`: the first argument, null where there is none.
  static CFunction of(PyObject* callable, PyObject* first) {
    if (Py_TYPE(callable) == &PyCFunction_Type || PyCFunction_Check(callable)) {
      const auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
      return {function->m_ml, function->m_self};
    }
    if (Py_TYPE(callable) != &PyMethodDescr_Type || first == nullptr) return {};
    return {reinterpret_cast<PyMethodDescrObject*>(callable)->d_method, first};
  }
};

}  // namespace recfn
