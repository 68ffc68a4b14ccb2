// What each part of the extension module contributes. Each returns 0, or -1 with a Python error set.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace recfn {
int add_recorder(PyObject* module);        // recorder_bindings.cpp
int add_chrome_encoder(PyObject* module);  // chrome_encoder.cpp
int add_vector_state(PyObject* module);    // vector_state.cpp
int add_sigterm(PyObject* module);         // sigterm.cpp
}  // namespace recfn
