"""The floors: what CPython takes to tell of calls to C code that does nothing with them, or only
reads the clock.

Compiled on the spot.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.compilers import compile_with

SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
static unsigned long long now() { return __rdtsc(); }
#else
static unsigned long long now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_nsec;
}
#endif
static volatile unsigned long long last;
static int nothing(PyObject*, PyFrameObject*, int, PyObject*) { return 0; }
static int time_it(PyObject*, PyFrameObject*, int, PyObject*) {
  last = now();
  return 0;
}
static PyObject* set(PyObject*, PyObject* on) {
  PyEval_SetProfile(PyObject_IsTrue(on) ? nothing : nullptr, nullptr);
  Py_RETURN_NONE;
}
static PyObject* set_clock(PyObject*, PyObject* on) {
  PyEval_SetProfile(PyObject_IsTrue(on) ? time_it : nullptr, nullptr);
  Py_RETURN_NONE;
}
static PyObject* set_here(PyObject*, PyObject*) {
  PyEval_SetProfile(nothing, nullptr);
  Py_RETURN_NONE;
}
static PyObject* event(PyObject*, PyObject* const*, Py_ssize_t) { Py_RETURN_NONE; }
static PyObject* clock_event(PyObject*, PyObject* const*, Py_ssize_t) {
  last = now();
  Py_RETURN_NONE;
}
static PyObject* call_event(PyObject*, PyObject* const* arguments, Py_ssize_t) {
  if (Py_TYPE(arguments[2]) != &PyFunction_Type) last = now();
  Py_RETURN_NONE;
}
template <class Function>
static PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}
static PyMethodDef methods[] = {
    {"set", set, METH_O, "Sets the profile function of this thread, or takes it away."},
    {"set_clock", set_clock, METH_O, "The same with one that reads the clock."},
    {"set_here", set_here, METH_VARARGS,
     "A profile function that puts the empty one in its own place."},
    {"event", fast(event), METH_FASTCALL, "A callback of sys.monitoring."},
    {"clock_event", fast(clock_event), METH_FASTCALL, "It reads the clock."},
    {"call_event", fast(call_event), METH_FASTCALL, "But for Python's."},
    {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "floor", "", -1, methods};
PyMODINIT_FUNC PyInit_floor() { return PyModule_Create(&definition); }
"""
BEGINS_AND_ENDS = (
    "PY_START",
    "PY_RESUME",
    "PY_THROW",
    "PY_RETURN",
    "PY_YIELD",
    "PY_UNWIND",
    "CALL",
)
WITH_CALL = ("C_RETURN", "C_RAISE")


def compiled(folder: Path) -> Any:
    """The module ``floor``, compiled once in that folder."""
    source = folder / "floor.cpp"
    library = folder / "floor.so"
    if not library.exists():
        source.write_text(SOURCE)
        compile_with([f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library)])
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
def profiled_by_clock(floor: Any) -> Iterator[None]:
    """A profile function in this thread that reads the clock, and keeps nothing."""
    floor.set_clock(True)
    try:
        yield
    finally:
        floor.set(False)


@contextmanager
def monitored(floor: Any, *, clock: bool = False) -> Iterator[None]:
    """Empty callbacks of ``sys.monitoring`` for all that a tracer of calls has to know; or such as
    read the clock where one call begins or ends.
    """
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events = {name: getattr(monitoring.events, name) for name in (*BEGINS_AND_ENDS, *WITH_CALL)}
    monitoring.use_tool_id(monitoring.PROFILER_ID, "floor")
    for name, number in events.items():
        with_clock = floor.call_event if name == "CALL" else floor.clock_event
        monitoring.register_callback(
            monitoring.PROFILER_ID, number, with_clock if clock else floor.event
        )
    monitoring.set_events(monitoring.PROFILER_ID, sum([events[name] for name in BEGINS_AND_ENDS]))
    try:
        yield
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
