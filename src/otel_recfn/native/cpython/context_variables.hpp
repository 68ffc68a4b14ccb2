// Setting context variables of ours, where CPython's own way isn't safe.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

#if PY_VERSION_HEX < 0x030C0000
// Before CPython 3.12 each allocation may collect garbage, and so run Python code: of whoever
// refers weakly to what is collected, of gc.callbacks, and of a signal handler that is due by then.
// In the middle of setting a context variable CPython uses the map of variables without owning it.
// If that code sets any variable, the map is freed and its memory given to another one: variables
// get values that nobody gave them, and some are freed although they have a value. So our sets
// collect none. (tests/contract/test_signal_handlers.py; ContextVar.set() of the program has the
// same fault.)
class WithoutCollections {
 public:
  WithoutCollections() : was_enabled_(PyGC_Disable() != 0) {}
  WithoutCollections(const WithoutCollections&) = delete;
  WithoutCollections& operator=(const WithoutCollections&) = delete;
  ~WithoutCollections() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  const bool was_enabled_;
};
#else
struct WithoutCollections {  // collections come between two instructions of Python's only
  WithoutCollections() {}
};
#endif

// A token, new; null with an error set. The token has the value before, so that nothing is freed in
// here: only whoever drops the token may run Python.
inline PyObject* set_variable(PyObject* variable, PyObject* value) {
  const WithoutCollections now;
  return PyContextVar_Set(variable, value);
}

// Back to the value before the token's set. -1 with an error set.
inline int reset_variable(PyObject* variable, PyObject* token) {
  const WithoutCollections now;
  return PyContextVar_Reset(variable, token);
}

}  // namespace recfn
