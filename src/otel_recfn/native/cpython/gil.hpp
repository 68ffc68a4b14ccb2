// Work that needs no Python, without the GIL; and work that does, in threads that may not have it.
#pragma once
#include "cpython/guarded.hpp"
#include "cpython/python.hpp"

namespace recfn {

// Calls work() without the GIL. False, with the error set, when memory ran out in it.
template <typename Work>
bool without_gil(Work work) {
  bool done = false;
  Py_BEGIN_ALLOW_THREADS;
  done = had_memory_for(work);
  Py_END_ALLOW_THREADS;
  if (!done) PyErr_NoMemory();
  return done;
}

// The same, but keeps the GIL for short work: where other threads compute in Python, it takes 5 ms for each to get it back.
template <typename Work>
bool without_gil_if(bool is_long, Work work) {
  if (is_long) return without_gil(work);
  const bool done = had_memory_for(work);
  if (!done) PyErr_NoMemory();
  return done;
}

// Python may be used in this scope: the GIL is held, and an exception that the thread was raising is put aside and restored.
class WithGil {
 public:
  WithGil() : gil_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &traceback_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() {
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(gil_);
  }

 private:
  const PyGILState_STATE gil_;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

}  // namespace recfn
