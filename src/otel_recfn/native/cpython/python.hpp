// Python.h, as everything here includes it.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
