"""The tracer of Python calls, with each recorder: what is at the address of something that is gone
has its own name.

CPython gives freed memory to the next object of the same size, and so to a type, to the text of its
name, and to both at once.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.calling_program import Traced, short
from otel_recfn.model.python_calls import PythonCalls

TIMES = 60


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """The collector of garbage, which is asked to run hundreds of times, need not look at what
    earlier tests have made.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def c_names(traced: Traced, program: Callable[[], Any], method: str) -> list[str]:
    """The traced calls of C functions with that name, in the order of their begins."""
    rows = sorted(traced.run(program), key=lambda row: row.event_id)
    return [
        row.name for row in rows if re.match(rf"<built-in (function|method) {method}\b", row.name)
    ]


def method_name(method: str, kind: str) -> str:
    return f"<built-in method {method} of {kind} object>"


@pytest.mark.parametrize(
    "name", ["Kind{:02}", "AKindWhoseNameIsLongerThanWhatIsComparedAtOnce{:02}"]
)
def test_a_type_at_the_address_of_another_with_its_name_there_too(
    traced: Traced, name: str
) -> None:
    def program() -> None:
        for number in range(TIMES):
            kind = type(name.format(number), (list,), {})
            kind().append(1)
            kind().append(2)
            del kind
            gc.collect()

    assert c_names(traced, program, "append") == [
        method_name("append", name.format(at // 2)) for at in range(2 * TIMES)
    ]


def test_a_type_without_a_version(traced: Traced) -> None:
    """One that changes between calls has none; from 3.13 on one that has changed 1000 times gets
    none any more.
    """

    class Kind(list):  # type: ignore[type-arg]
        changes = 0

    def program() -> None:
        for number in range(1100):
            Kind.changes = number
            Kind().append(1)
        Kind.__name__ = "Renamed"
        Kind().append(1)

    names = c_names(traced, program, "append")
    assert names == [method_name("append", "Kind")] * 1100 + [method_name("append", "Renamed")]


class Definition(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@pytest.mark.parametrize("bound_to", [None, datetime.datetime_CAPI], ids=["nothing", "a capsule"])
def test_a_c_function_at_the_address_of_another_with_its_name_there_too(
    traced: Traced, bound_to: object
) -> None:
    """As pybind11 frees and makes them, all with one function; here the very same memory, to be
    sure of the address.
    """
    name = ctypes.create_string_buffer(32)
    answer = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(_answer)
    definition = Definition(
        ctypes.addressof(name), ctypes.cast(answer, ctypes.c_void_p).value, METH_NOARGS, None
    )
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    held = ctypes.py_object(bound_to) if bound_to is not None else None
    functions = []

    def program() -> None:
        for number in range(TIMES):
            name.value = f"made_{number:02}".encode()
            function = make(ctypes.byref(definition), held, None)
            function()
            functions.append(function)

    names = c_names(traced, program, r"made_\d+")
    kind = "function {}" if bound_to is None else "method {} of PyCapsule object"
    assert names == [f"<built-in {kind.format(f'made_{number:02}')}>" for number in range(TIMES)]


METH_NOARGS = 4


def _answer(_held: object, _nothing: object) -> None:
    return None


def test_code_at_the_address_of_another(traced: Traced) -> None:
    addresses = []

    def program() -> None:
        for number in range(TIMES):
            namespace: dict[str, Any] = {}
            exec(f"def made_{number:02}():\n    yield len('x')\n    yield", namespace)
            addresses.append(id(namespace[f"made_{number:02}"].__code__))
            list(namespace.pop(f"made_{number:02}")())
            del namespace
            gc.collect()

    rows = sorted(traced.run(program, PythonCalls(call_sites=True)), key=lambda row: row.event_id)
    names = [short(row) for row in rows if short(row).startswith("made_")]
    assert names == [f"made_{at // 3:02}" for at in range(3 * TIMES)]
    sites = [row.call_site.rpartition(" ")[2] for row in rows if "made_" in row.call_site]
    assert sites == [f"made_{number:02}" for number in range(TIMES)]
    assert len(set(addresses)) < TIMES
