// Python.h, as everything here includes it.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "otel-recfn needs a GIL, which guards its state, and this CPython is free-threaded"
#endif
