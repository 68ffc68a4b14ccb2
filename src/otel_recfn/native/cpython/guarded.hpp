// Memory that runs out, at the functions that Python calls and in what runs inside the program's own calls.
#pragma once
#include <new>
#include <stdexcept>

#include "cpython/python.hpp"

namespace recfn {

// Does the work; false where there was no memory for it.
template <typename Work>
bool had_memory_for(Work work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {  // more than any memory holds
    return false;
  }
}

// Calls a function that gives an object; memory that is missing is Python's error.
template <typename Function>
PyObject* guarded(Function function) {
  PyObject* result = nullptr;
  return had_memory_for([&] { result = function(); }) ? result : PyErr_NoMemory();
}

}  // namespace recfn
