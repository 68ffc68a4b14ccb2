// What is being raised, put aside and handed on.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// As one object, with its traceback; null where nothing is. Nothing is raised any more.
inline PyObject* take_raised() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (type == nullptr) return nullptr;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_DECREF(type);
  Py_XDECREF(traceback);
  return value;
}

inline int raise_taken(void* taken) {
  auto* raised = static_cast<PyObject*>(taken);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
  Py_DECREF(raised);
  return -1;
}

// An operator can't pass on what was raised in the program while it ran (KeyboardInterrupt, or by another signal handler): the main
// thread's next Python instruction does. Takes it.
inline void raise_in_main_thread(PyObject* raised) {
  if (Py_AddPendingCall(raise_taken, raised) < 0) Py_DECREF(raised);
}

}  // namespace recfn
