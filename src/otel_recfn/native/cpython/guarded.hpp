// Functions that Python calls, in which memory may be missing.
#pragma once
#include <new>

#include "cpython/python.hpp"

namespace recfn {

// Calls a function that gives an object; memory that is missing is Python's error.
template <typename Function>
PyObject* guarded(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace recfn
