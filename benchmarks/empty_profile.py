"""The floors: what CPython takes to tell of calls to C code that does nothing with them. Compiled on the spot."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static int nothing(PyObject*, PyFrameObject*, int, PyObject*) { return 0; }
static PyObject* set(PyObject*, PyObject* on) {
  PyEval_SetProfile(PyObject_IsTrue(on) ? nothing : nullptr, nullptr);
  Py_RETURN_NONE;
}
static PyObject* set_here(PyObject*, PyObject*) {
  PyEval_SetProfile(nothing, nullptr);
  Py_RETURN_NONE;
}
static PyObject* event(PyObject*, PyObject* const*, Py_ssize_t) { Py_RETURN_NONE; }
static PyMethodDef methods[] = {
    {"set", set, METH_O, "Sets the profile function of this thread, or takes it away."},
    {"set_here", set_here, METH_VARARGS, "A profile function that puts the empty one in its own place."},
    {"event", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(event)), METH_FASTCALL, "A callback of sys.monitoring."},
    {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "floor", "", -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_floor() { return PyModule_Create(&definition); }
"""
BEGINS_AND_ENDS = ("PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND", "CALL")
WITH_CALL = ("C_RETURN", "C_RAISE")


def compiled(folder: Path) -> Any:
    """The module ``floor``, made in that folder."""
    source, library = folder / "floor.cpp", folder / "floor.so"
    source.write_text(SOURCE)
    include = sysconfig.get_paths()["include"]
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-I", include, str(source), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("floor", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def profiled(floor: Any) -> Iterator[None]:
    """An empty profile function in this thread, and in those that Python starts."""
    threading.setprofile(floor.set_here)
    floor.set(True)
    try:
        yield
    finally:
        floor.set(False)
        threading.setprofile(None)


@contextmanager
def monitored(floor: Any) -> Iterator[None]:
    """Empty callbacks of ``sys.monitoring`` for all that a tracer of calls has to know."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events = {name: getattr(monitoring.events, name) for name in (*BEGINS_AND_ENDS, *WITH_CALL)}
    monitoring.use_tool_id(monitoring.PROFILER_ID, "floor")
    for number in events.values():
        monitoring.register_callback(monitoring.PROFILER_ID, number, floor.event)
    monitoring.set_events(monitoring.PROFILER_ID, sum([events[name] for name in BEGINS_AND_ENDS]))
    try:
        yield
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
