"""What it costs to trace a Python call, beside the peers, all in one process.

    python benchmarks/bench_python_calls.py [rounds]

The machine may be busy: every side takes a short turn in each of many rounds, and the fastest turn of each counts. The floor is
an empty profile function in C: what CPython itself takes to tell of a call and of its return. Peers that aren't installed are
left out (VizTracer, torch). Turns are so short that what a side keeps fits its buffers: what drains them works beside it.
"""

from __future__ import annotations

import cProfile
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from otel_recfn import profile

ROUNDS = 30
CALLS = 20_000
BYTES_PER_CALL = 32  # a begin and an end in the thread's ring (native/core/record.hpp)

FLOOR = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static int nothing(PyObject*, PyFrameObject*, int, PyObject*) { return 0; }
static PyObject* set(PyObject*, PyObject* on) {
  PyEval_SetProfile(PyObject_IsTrue(on) ? nothing : nullptr, nullptr);
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"set", set, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "floor", "", -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_floor() { return PyModule_Create(&definition); }
"""


def compiled_floor(folder: Path) -> Any:
    source, library = folder / "floor.cpp", folder / "floor.so"
    source.write_text(FLOOR)
    include = sysconfig.get_paths()["include"]
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-I", include, str(source), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("floor", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def called() -> None:
    pass


def python_calls() -> None:
    for _ in range(CALLS):
        called()


def c_calls(c_function: Callable[[str], int] = len) -> None:
    for _ in range(CALLS):
        c_function("")


@contextmanager
def under_floor(floor: Any) -> Iterator[None]:
    floor.set(True)
    try:
        yield
    finally:
        floor.set(False)


@contextmanager
def under_viztracer() -> Iterator[None]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, tracer_entries=4 * CALLS)
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()
        tracer.clear()


def under_torch() -> AbstractContextManager[Any]:
    import torch

    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True)


def turn(work: Callable[[], None], side: Callable[[], AbstractContextManager[Any]]) -> float:
    """Nanoseconds per call."""
    with side():
        began = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - began) / CALLS


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        floor = compiled_floor(Path(folder))
        sides: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            "nothing": nullcontext,
            "empty C profile function": lambda: under_floor(floor),
            "otel-recfn": lambda: profile(python_calls=True),
            "cProfile": cProfile.Profile,
        }
        if importlib.util.find_spec("viztracer"):
            sides["VizTracer"] = under_viztracer
        if importlib.util.find_spec("torch"):
            sides["torch.profiler(with_stack=True)"] = under_torch
        print(f"CPython {sys.version.split()[0]}; ns per call, the fastest of {rounds} turns; {BYTES_PER_CALL} bytes a call")
        for work in (python_calls, c_calls):
            turns = [{name: turn(work, side) for name, side in sides.items()} for _ in range(rounds)]
            best = {name: min(each[name] for each in turns) for name in sides}
            for name, cost in best.items():
                ratio = cost / best["empty C profile function"]
                print(f"  {work.__name__:13} {name:33} {cost:7.1f}   {ratio:5.2f} of the floor")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
