// Calls of our Python functions that Dynamo doesn't see: it observes the thread's frames to compile
// them.
#pragma once
#include <cstddef>

#include "cpython/python.hpp"

namespace recfn {

// Sets the thread's observer of frames and returns the one that was set before; null while nobody
// knows of any.
inline PyObject* set_observer = nullptr;

// Calls a function of ours while the thread's frames have no observer.
inline PyObject* call_without_dynamo(PyObject* function, PyObject* const* args, size_t count) {
  if (set_observer == nullptr) return PyObject_Vectorcall(function, args, count, nullptr);
  const Reference setter(Py_NewRef(set_observer));
  const Reference before(PyObject_CallOneArg(setter.get(), Py_None));
  if (!before) return nullptr;
  PyObject* result = PyObject_Vectorcall(function, args, count, nullptr);
  if (before.get() == Py_None) return result;
  PyObject* raised = take_raised();
  const Reference back(PyObject_CallOneArg(setter.get(), before.get()));
  if (!back) PyErr_Clear();
  if (raised != nullptr) raise_again(raised);
  return result;
}

}  // namespace recfn
