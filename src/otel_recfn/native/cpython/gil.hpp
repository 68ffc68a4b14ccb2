// Work that needs no Python, without the GIL.
#pragma once
#include <new>

#include "cpython/python.hpp"

namespace recfn {

// Calls work() without the GIL. False, with the error set, when memory ran out in it.
template <typename Work>
bool without_gil(Work work) {
  bool out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    work();
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (out_of_memory) PyErr_NoMemory();
  return !out_of_memory;
}

}  // namespace recfn
