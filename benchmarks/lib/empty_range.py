"""A context manager in C that does nothing: the least that a ``with`` statement can cost."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from typing import Any

from lib.compilers import compile_with

EMPTY_CONTEXT_MANAGER = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject* enter(PyObject* self, PyObject*) { Py_INCREF(self); return self; }
static PyObject* leave(PyObject*, PyObject* const*, Py_ssize_t) { Py_RETURN_FALSE; }
static PyMethodDef methods[] = {{"__enter__", enter, METH_NOARGS, nullptr},
                                {"__exit__", reinterpret_cast<PyCFunction>(leave), METH_FASTCALL,
                                 nullptr},
                                {}};
static PyObject* make(PyTypeObject* type, PyObject*, PyObject*) { return type->tp_alloc(type, 0); }
static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "empty_range", nullptr, -1};
PyMODINIT_FUNC PyInit_empty_range() {
  type.tp_name = "empty_range.EmptyRange";
  type.tp_basicsize = sizeof(PyObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_methods = methods;
  type.tp_new = make;
  PyObject* module = PyModule_Create(&definition);
  if (PyType_Ready(&type) == 0) {
    PyModule_AddObjectRef(module, "EmptyRange", reinterpret_cast<PyObject*>(&type));
  }
  return module;
}
"""


def compiled_empty_range(folder: Path) -> Any:
    """A type whose objects do nothing when entered and left, compiled once in a folder."""
    source = folder / "empty_range.cpp"
    library = folder / f"empty_range{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists():
        source.write_text(EMPTY_CONTEXT_MANAGER)
        compile_with([f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library)])
    sys.path.insert(0, str(folder))
    return importlib.import_module("empty_range").EmptyRange
