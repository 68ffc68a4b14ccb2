// Setting context variables of ours, where CPython's own way isn't safe.
#pragma once
#include "cpython/collections.hpp"
#include "cpython/python.hpp"

namespace recfn {

// In the middle of setting a context variable CPython uses the map of variables without owning it.
// If a garbage collection runs code that sets any variable, the map is freed and its memory given
// to another one: variables get values that nobody gave them, and some are freed although they have
// a value. So our sets collect none. (tests/contract/test_signal_handlers.py; ContextVar.set() of
// the program has the same fault.)

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
