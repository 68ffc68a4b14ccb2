// Work that needs no Python, without the GIL.
#pragma once
#include <new>
#include <stdexcept>

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
  } catch (const std::length_error&) {  // more than any memory holds
    out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (out_of_memory) PyErr_NoMemory();
  return !out_of_memory;
}

// The same, but keeps the GIL for short work: where other threads compute in Python, it takes 5 ms for each to get it back.
template <typename Work>
bool without_gil_if(bool is_long, Work work) {
  if (is_long) return without_gil(work);
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::length_error&) {
    PyErr_NoMemory();
  }
  return false;
}

}  // namespace recfn
